"""Processes are killed around handlers of every kind: what they write is written exactly once."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from flask import Flask

from app import create_app, db
from app.audit import sealing
from app.audit.append import CREATE
from app.audit.entries import LOG
from app.collections import definitions
from app.db.functions import database_now
from app.extensions import jobs as handler_jobs
from app.extensions.loading import loaded
from app.jobs import TABLE, JobState, worker
from app.workflows.engine import external_steps
from app.workflows.models import INSTANCES, InstanceState
from tests import processes
from tests.builders import Caller, Cast, make_collection
from tests.conftest import WHOLE
from tests.processes import Process, Restartable, environment, forked, stock_command
from tests.project import PROJECT
from tests.services import Redis
from tests.workflows.running import make_workflow

SHOP = "tests.system.extensions.shop"
ORDERS = 3
"""Orders between two kills."""


class Worker(processes.Worker):
    """A worker that finds the extension of these tests."""

    def start(self) -> None:
        """Fork it."""
        self._running = forked(_work, self._env, self._log)


class Writer(Restartable):
    """A process that makes orders until it is killed, through the API."""

    def __init__(self, env: dict[str, str], token: str, log: Path) -> None:
        self._args, self._number = (env, token, log), 0
        super().__init__()

    def start(self) -> None:
        """Fork it; its orders have other titles than those before."""
        self._number += 1
        self._running = forked(_write, *self._args, self._number)

    def kill(self) -> None:
        """End it in the middle of something."""
        self._running.kill()
        self._running.join()


def _work(env: dict[str, str], log: Path) -> None:
    sys.path.insert(0, env["PYTHONPATH"])
    processes._work(env, log)


def _write(env: dict[str, str], token: str, log: Path, number: int) -> None:
    sys.path.insert(0, env["PYTHONPATH"])
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(env)
    with log.open("a") as output:
        os.dup2(output.fileno(), 2)
    app = create_app()
    client = Caller(app, Authorization=f"Bearer {token}")
    for n in range(10_000):
        client.post("records/orders", {"title": f"w{number}-{n}", "state": "new"})
        # Refused by the rule after the handler has written, which its rollback takes along.
        client.post("records/orders", {"title": f"x{number}-{n}", "state": "refused"})
        time.sleep(0.05)


@pytest.fixture
def redis_url(database: str) -> Iterator[str]:
    """A Redis of its own, which may be emptied; with SQLite none."""
    if database == "sqlite":
        yield ""
        return
    server = Redis()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def env(app: Flask, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of processes on the application's database, with the extension."""
    packages = tmp_path / "packages"
    about = packages / "shop-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[atrium.extensions]\nshop = {SHOP}\n")
    settings = app.extensions["atrium.config"]
    made = environment(
        tmp_path,
        SERVICE_ENV="test",
        SERVICE_INSTANCE_DIR=str(settings.instance_dir),
        SERVICE_BASE_URL="http://atrium.test",
        SERVICE_DATABASE_URL=settings.database_url,
        SERVICE_REDIS_URL=redis_url,
        SERVICE_WORKFLOW_LEASE_SECONDS="1",
        SERVICE_EXTENSIONS="shop",
        PYTHONPATH=f"{packages}",
    )
    return {**made, "REDIS_URL": redis_url} if redis_url else made


@WHOLE
def test_writes_of_handlers_happen_once_whatever_is_killed(
    app: Flask,
    env: dict[str, str],
    redis_url: str,
    cast: Cast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """On SQLite with the embedded default; on PostgreSQL RQ's own worker too, and a lost Redis."""
    for module, name in (
        (handler_jobs, "LEASE_SECONDS"),
        (worker, "LEASE_SECONDS"),
        (external_steps, "OWN_SECONDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # which the extension changes
    kills, chance = (200, random.Random(7)) if whole else (10, random.Random(8))
    texts = [{"name": name, "type": "text"} for name in ("title", "state")]
    make_collection(cast.root, "notes")
    make_collection(cast.root, "orders", texts, create_rule='state != "refused"')
    with loaded(SHOP):
        charge = {"name": "pay", "type": "charge", "input": {"title": "{{ trigger.record.title }}"}}
        trigger = {"type": "event", "event": "records.create", "collection": "orders"}
        make_workflow(cast.alice, [charge], trigger)
        token = cast.alice.headers["Authorization"].removeprefix("Bearer ")
        runners: list[Restartable] = [Worker(env, tmp_path / "worker.log")]
        if redis_url:
            runners.append(Process(stock_command(), env, tmp_path / "rq.log"))
        runners.append(Writer(env, token, tmp_path / "writer.log"))
        own = list[str]()
        try:
            for n in range(kills):
                for one in range(ORDERS):
                    own.append(f"o{n}-{one}")
                    body = {"title": own[-1], "state": "new"}
                    assert cast.alice.post("records/orders", body).status_code == 201
                if n % 10 == 5:
                    _fire(app)
                time.sleep(chance.uniform(0, 0.3))
                if redis_url and chance.random() < 0.2:
                    redis.Redis.from_url(redis_url).flushall()
                chance.choice(runners).crash()
            runners.pop().kill()  # the writer
            while not _fire(app):
                time.sleep(0.2)
            _wait(app, tmp_path, 240)
        finally:
            for one in runners:
                one.kill()
    with app.app_context():
        made = _orders(cast.alice.account_id)
        found = Counter(_titles())
    assert set(own) <= made.keys()
    counted = {title for title in found if title.startswith("count ")}
    expected = {
        f"{verb} {title}"
        for verb in ("reserve", "ship", "bill", "follow", "forget", "charge")
        for title in made
    }
    expected |= {f"hear {id}" for id in made.values()}
    assert found == dict.fromkeys(expected | counted, 1)
    runs = [row for row in _jobs(app) if row.kind == "extensions.shop.count"]
    assert len(counted) == len(runs) > 0
    assert {row.status for row in runs} == {JobState.DONE}


def _fire(app: Flask) -> bool:
    """Make the periodic handler due, unless it is; whether a worker had planned it."""
    with app.app_context(), db.transaction() as session:
        is_idle = sa.or_(TABLE.c.attempts == 0, TABLE.c.finished_at.is_not(None))
        planned = (TABLE.c.kind == "extensions.shop.count.schedule", is_idle)
        due = sa.update(TABLE).where(*planned).values(due_at=database_now(-1))
        changed: Any = session.execute(due)
        return bool(changed.rowcount)


def _jobs(app: Flask) -> list[Any]:
    with app.app_context():
        ours = TABLE.c.kind.startswith(handler_jobs.PREFIX, autoescape=True)
        return list(db.connection().execute(sa.select(TABLE).where(ours)))


def _wait(app: Flask, folder: Path, seconds: float) -> None:
    """Wait until all that was begun has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with app.app_context():
            ours = TABLE.c.kind.startswith(handler_jobs.PREFIX, autoescape=True)
            schedule = TABLE.c.kind.endswith(".schedule", autoescape=True)
            pending = sa.select(sa.func.count()).select_from(TABLE)
            pending = pending.where(ours, ~schedule, TABLE.c.status != JobState.DONE)
            active = sa.select(sa.func.count()).select_from(INSTANCES)
            active = active.where(INSTANCES.c.status != InstanceState.COMPLETED)
            left = db.connection().scalar(pending), db.connection().scalar(active)
        if left == (0, 0):
            return
        time.sleep(0.5)
    log = (folder / "worker.log").read_text()[-3000:]
    raise AssertionError(f"{left} are left: {[one for one in _jobs(app) if one.last_error]} {log}")


def _titles() -> list[str]:
    table = definitions.get("notes").table
    return list(db.connection().scalars(sa.select(table.c.title)))


def _orders(account_id: str) -> dict[str, str]:
    """The ids of all orders that were committed, by title, as the audit log has them."""
    sealing.settle(account_id)
    of_orders = LOG.c.table_name == definitions.get("orders").table_name
    where = (LOG.c.operation == CREATE, of_orders, LOG.c.column_name == "title")
    rows = sa.select(LOG.c.new_value, LOG.c.record_id).where(*where)
    return {row.new_value: row.record_id for row in db.connection().execute(rows)}
