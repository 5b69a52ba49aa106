"""Workers and the queue in Redis."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.exc import OperationalError

from app import create_app, db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.db import engine
from app.jobs import queue, wakeups, worker
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.mailbox import outbox
from tests.processes import Worker, forked
from tests.receivers import receiving
from tests.services import Redis
from tests.test_jobs import Define, ask, define, only, rows, until  # noqa: F401 - a fixture
from tests.webhooks.delivering import make_webhook

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
def test_job_queue_in_redis_wakes_worker(
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


WORKER_OF_POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@contextmanager
def told(app: Flask) -> Iterator[None]:
    """A worker's process that only PostgreSQL can tell of work."""
    settings = app.extensions["atrium.config"]
    of_worker = {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(settings.instance_dir),
        "SERVICE_DATABASE_URL": settings.database_url,
    }
    process = forked(serve_without_sweep, {**os.environ, **of_worker})
    try:
        assert until(lambda: rows(app) and len(listeners(app)) == 1)
        time.sleep(1)  # its loops have looked at what there was
        yield
    finally:
        process.kill()
        process.join()


def listeners(app: Flask) -> list[int]:
    """The processes of the server that tell of work."""
    find = "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN atrium_work'"
    with app.app_context(), engine.owner_connection() as connection:
        return list(connection.scalars(sa.text(f"{find} AND datname = current_database()")))


@pytest.mark.timing
@WORKER_OF_POSTGRESQL
def test_job_notification_by_postgresql_wakes_worker_without_redis(
    app: Flask, anyone: Caller
) -> None:
    with told(app):
        for name in ("ann", "ben", "cleo"):
            begun = time.monotonic()
            body = {**BODY, "account": name, "email": f"{name}@acme.example"}
            assert anyone.post("auth/register", body).status_code == 201
            assert until(lambda: all(row.status == "done" for row in asked(app)))
            assert time.monotonic() - begun < 2


@pytest.mark.timing
@WORKER_OF_POSTGRESQL
def test_delivery_notification_by_postgresql_without_redis(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    with receiving() as receiver, told(app):
        make_webhook(cast.alice, receiver.url)
        for number in (1, 2, 3):
            begun = time.monotonic()
            make_record(cast.alice)
            assert until(lambda n=number: len(receiver.requests) == n)  # type: ignore[misc]
            assert time.monotonic() - begun < 2


def asked(app: Flask) -> list[Any]:
    """The jobs that requests have asked for."""
    return [row for row, _ in rows(app) if row.account_id != jobs.INSTANCE]


@WORKER_OF_POSTGRESQL
def test_job_worker_reconnects_to_postgresql_notifications(app: Flask, anyone: Caller) -> None:
    with told(app):
        (lost,) = listeners(app)
        with app.app_context(), engine.owner_connection() as connection:
            connection.execute(sa.text(f"SELECT pg_terminate_backend({lost})"))
        assert anyone.post("auth/register", BODY).status_code == 201
        # It looks once it is told again, at what it has missed.
        assert until(lambda: asked(app)[0].status == "done", 5)
        assert until(lambda: listeners(app) not in ([], [lost]), 5)


@WORKER_OF_POSTGRESQL
def test_job_worker_polls_often_without_postgresql_notifications(
    app: Flask, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(topic: wakeups.Topic) -> Iterator[str]:
        raise OperationalError("", {}, Exception())

    monkeypatch.setattr(wakeups, "_postgres_messages", fail)
    monkeypatch.setattr(wakeups.Sender, "add", lambda *given: None)
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 3600)
    stop, done = threading.Event(), threading.Event()
    define(lambda payload: done.set())

    def work() -> None:
        with app.app_context():
            worker.serve(stop)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1)
    ask(app)
    assert done.wait(5)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


@WORKER_OF_POSTGRESQL
def test_job_notification_is_sent_for_due_jobs_after_commit(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[tuple[wakeups.Topic, str]]()
    monkeypatch.setattr(wakeups.Sender, "add", lambda self, *news: heard.append(news))
    with app.app_context():
        with db.transaction():
            jobs.enqueue("auth.send_verification", {}, account_id=SYSTEM_ACCOUNT_ID)
            jobs.enqueue("auth.send_verification", {}, account_id=SYSTEM_ACCOUNT_ID)
            jobs.enqueue("accounts.export", {}, account_id=SYSTEM_ACCOUNT_ID, after=60)
            assert heard == []
        assert heard == [(queue.WORK, "mail")]
        with suppress(LookupError), db.transaction():
            jobs.enqueue("auth.send_verification", {}, account_id=SYSTEM_ACCOUNT_ID)
            raise LookupError
    assert heard == [(queue.WORK, "mail")]


@pytest.mark.one_database
def test_job_queue_without_redis_is_served_by_sweep(
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
def test_job_worker_logs_redis_loss_as_json(
    app: Flask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with queued(app, monkeypatch) as (server, environ), working(environ, log):
        # RQ names a worker before it listens; one that loses Redis between has another line.
        assert until(lambda: jobs.redis_client(server.url).pubsub_channels("rq:pubsub:*"))
        server.kill()
        assert until(lambda: '"rq"' in log.read_text())
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()]
