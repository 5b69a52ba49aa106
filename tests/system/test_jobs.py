"""Workers and the queue in Redis."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from flask import Flask

from app import create_app, jobs
from app.jobs import worker
from tests.builders import PASSWORD, Caller
from tests.mailbox import outbox
from tests.processes import Worker, forked
from tests.services import Redis
from tests.test_jobs import only, rows, until

BODY = {"account": "acme", "email": "ann@acme.example", "password": PASSWORD}


@contextmanager
def queued(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Redis, dict[str, str]]]:
    """A Redis of its own that the application uses, and the environment of a worker beside it."""
    with Redis(private=True) as server:
        settings = replace(app.extensions["atrium.config"], redis_url=server.url)
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        environ = {
            **os.environ,
            "SERVICE_ENV": "test",
            "SERVICE_INSTANCE_DIR": str(settings.instance_dir),
            "SERVICE_DATABASE_URL": settings.database_url,
            "SERVICE_REDIS_URL": server.url,
        }
        yield server, environ
        jobs.redis_client(server.url).close()


def serve_without_sweep(environ: dict[str, str]) -> None:
    """A worker whom only the queue can tell."""
    os.environ.update(environ)
    worker.SWEEP_SECONDS = 3600
    with create_app().app_context():
        worker.serve(threading.Event())


@contextmanager
def working(environ: dict[str, str], log: Path) -> Iterator[None]:
    """A worker's process."""
    process = Worker(environ, log)
    try:
        yield
    finally:
        process.stop()


@pytest.mark.one_database
def test_with_redis_the_queue_wakes_a_worker(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queued(app, monkeypatch) as (_, environ):
        assert anyone.get("/ready").json["checks"]["queue"] == "ok"
        process = forked(serve_without_sweep, environ)
        try:
            assert until(lambda: rows(app))  # it has begun, and waits for its wake-up
            assert anyone.post("auth/register", BODY).status_code == 201
            assert until(lambda: outbox(app))
            assert until(lambda: only(app).status == "done")
        finally:
            process.kill()
            process.join()


@pytest.mark.one_database
def test_without_redis_no_request_waits_and_the_sweep_finds_the_work(
    app: Flask, anyone: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with queued(app, monkeypatch) as (server, environ):
        server.kill()
        started = time.perf_counter()
        assert anyone.post("auth/register", BODY).status_code == 201
        assert time.perf_counter() - started < 1.5
        assert anyone.get("/ready").json["checks"]["queue"] == "unreachable"
        with working(environ, tmp_path / "log"):
            assert until(lambda: outbox(app))
            assert until(lambda: only(app).status == "done")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_that_loses_redis_tells_so_in_lines_of_json(
    app: Flask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with queued(app, monkeypatch) as (server, environ), working(environ, log):
        # RQ names a worker before it listens; one that loses Redis between has another line.
        assert until(lambda: jobs.redis_client(server.url).pubsub_channels("rq:pubsub:*"))
        server.kill()
        assert until(lambda: '"rq"' in log.read_text())
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()]
