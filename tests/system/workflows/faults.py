"""Workers that are killed: forked ones, which stop in the middle of a step, and real ones."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask

from app import db
from app.jobs import turns
from app.jobs.rq_queues import WORKFLOWS
from app.workflows import dispatch
from app.workflows.engine import control_steps, external_steps
from tests.processes import Process, Restartable, Worker, environment, stock_command

REACH_SECONDS = 60


@contextmanager
def stopping_in(app: Flask, step: str) -> Iterator[int]:
    """A worker that has done a step and not yet said so, until the end, when it is killed.

    Gives the number of the process.
    """
    told, tells = os.pipe()
    with app.app_context():
        db.db.session.remove()
    pid = os.fork()
    if pid == 0:
        try:
            _work(app, step, tells)
        finally:
            os._exit(1)
    os.close(tells)
    try:
        assert select.select([told], [], [], REACH_SECONDS)[0], f"no worker reached {step}"
        assert os.read(told, 1) == b"x"
        yield pid
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(app: Flask, step: str, tells: int) -> None:
    db.dispose_after_fork(app)

    def stop() -> None:
        os.write(tells, b"x")
        time.sleep(60)

    done, carry_out = control_steps.run_step, external_steps.carry_out

    def stopping_done(run: Any, place: Any) -> Any:
        outcome = done(run, place)
        if place.step.name == step:
            stop()
        return outcome

    def stopping_carry_out(kind: str, given: Any, *others: Any) -> Any:
        output = carry_out(kind, given, *others)
        if given["body"] == step:
            stop()
        return output

    control_steps.run_step, external_steps.carry_out = stopping_done, stopping_carry_out
    woken = threading.Event()
    with app.app_context(), turns.serving(WORKFLOWS, woken):
        dispatch.work(threading.Event(), woken)


def start_workers(app: Flask, folder: Path, redis_url: str) -> list[Restartable]:
    """A worker on the database of an application, and with Redis RQ's own beside it."""
    settings = app.extensions["atrium.config"]
    env = environment(
        folder,
        SERVICE_ENV="test",
        SERVICE_INSTANCE_DIR=str(settings.instance_dir),
        SERVICE_BASE_URL="http://atrium.test",
        SERVICE_DATABASE_URL=settings.database_url,
        SERVICE_REDIS_URL=redis_url,
        SERVICE_WEBHOOK_TIMEOUT_SECONDS="1",
        SERVICE_WORKFLOW_LEASE_SECONDS="1",
    )
    ours = Worker(env, folder / "worker.log")
    if not redis_url:
        return [ours]
    return [ours, Process(stock_command(), {**env, "REDIS_URL": redis_url}, folder / "rq.log")]
