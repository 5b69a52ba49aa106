"""Changes get their place in the log after their commit: none is lost, none comes twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import config, create_app, db
from app.audit import append, sealing
from app.audit.chain import verify
from app.audit.log import AUDIT
from app.audit.models import AuditChange
from app.db import sqlite_driver
from app.realtime.feed import changes
from tests.processes import forked

ACCOUNT = "019a9f00-0000-7000-8000-000000000001"
WRITERS, SEALERS = 16, 2
KILLED = -signal.SIGKILL


def change(writer: int, number: int) -> None:
    """Commit a change."""
    with db.transaction():
        target = (append.UPDATE, "col_posts", str(writer))
        append.record(append.Change(ACCOUNT, target, [("n", str(number - 1), str(number))]))


def write(settings: config.Config, writer: int, count: int) -> None:
    """Commit changes one after another."""
    with create_app(settings).app_context():
        for number in range(count):
            change(writer, number)


def seal(settings: config.Config, count: int) -> None:
    """Seal until everything is there, as several workers and readers do at once."""
    total = sa.select(sa.func.count()).where(AuditChange.account_id == ACCOUNT)
    with create_app(settings).app_context():
        while db.connection().scalar(total) != count:
            sealing.seal_due()


def stored() -> list[tuple[int, int]]:
    """The changes in the order of the chain: writer and number."""
    table = AuditChange.__table__
    query = sa.select(table.c.record_id, table.c.new_values).where(table.c.account_id == ACCOUNT)
    rows = db.connection().execute(query.order_by(table.c.first_id)).all()
    return [(int(row.record_id), int(row.new_values[2:-2])) for row in rows]


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_audit_log_of_hot_account_is_complete_and_keeps_causes_before_effects(
    app: Flask, count: int
) -> None:
    settings, total = app.extensions["atrium.config"], WRITERS * count
    processes = [forked(write, settings, writer, count) for writer in range(WRITERS)]
    processes += [forked(seal, settings, total) for _ in range(SEALERS)]
    seen, after = list[int](), 0
    with app.app_context():
        while len(seen) < total:  # a reader of the feed meanwhile
            are_running = any(one.is_alive() for one in processes)
            assert changes.bounds(ACCOUNT).newest >= after
            scan = changes.scan(ACCOUNT, after, ["col_posts"])
            seen += [row.change for row in scan.rows]
            after = scan.next
            assert scan.rows or are_running  # who comes later than all still gets the rest
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * len(processes)
        numbers = sa.select(AuditChange.first_id).where(AuditChange.account_id == ACCOUNT)
        assert seen == sorted(db.connection().scalars(numbers))
        found = stored()
        for writer in range(WRITERS):
            assert [n for one, n in found if one == writer] == list(range(count))
        report = verify.verify_all(AUDIT, ACCOUNT)
        assert (report["valid"], report["checked"], report["unsealed"]) == (True, total, 0)


def wait_until(happened: Callable[[], object]) -> None:
    """Look every few milliseconds, for some seconds."""
    end = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


def die(settings: config.Config, moment: str) -> None:
    """Commit changes, and be killed at a moment of their sealing."""

    def kill(*arguments: Any) -> Any:
        result = original(*arguments) if moment == "linked" else None
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    with create_app(settings).app_context():
        for number in range(3):
            change(1, number)
        original = getattr(sealing, "_link")  # noqa: B009 - replaced below
        if moment == "committed":
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(sealing, "_link", kill)  # noqa: B010 - as mypy refuses the other way
        sealing.settle(ACCOUNT)


@pytest.mark.parametrize("moment", ["committed", "locked", "linked"])
def test_audit_log_of_killed_process_has_each_change_once(app: Flask, moment: str) -> None:
    process = forked(die, app.extensions["atrium.config"], moment)
    process.join()
    assert process.exitcode == KILLED
    with app.app_context():
        report = verify.verify_all(AUDIT, ACCOUNT)
        assert (report["valid"], report["checked"], report["unsealed"]) == (True, 3, 0)
        assert stored() == [(1, 0), (1, 1), (1, 2)]


@contextmanager
def loop(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loop of this process, which has looked once, and is woken by what is announced alone."""
    stop, woken, looks = threading.Event(), threading.Event(), list[float]()
    seal_due = sealing.seal_due

    def look() -> None:
        seal_due()
        looks.append(time.monotonic())

    def run() -> None:
        with app.app_context():
            sealing.work(stop, woken)

    monkeypatch.setattr(sealing, "LOOK_SECONDS", 60)
    monkeypatch.setattr(sealing, "seal_due", look)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: looks)
        yield
    finally:
        stop.set()
        woken.set()
        thread.join()


def test_audit_log_is_sealed_at_once_where_nobody_reads(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loop(app, monkeypatch):
        for number in range(3):
            with app.app_context():
                change(1, number)
                committed = time.monotonic()
                wait_until(lambda: not sealing.due())
                assert time.monotonic() - committed < 1


def seal_alone(settings: config.Config, ready: Path) -> None:
    """Keep other processes from sealing in the background on SQLite, until it is killed."""
    with create_app(settings).app_context(), ExitStack() as stack:
        alone = partial(sqlite_driver.alone, db.sqlite_file(), "sealing")
        wait_until(lambda: stack.enter_context(alone()))
        ready.touch()
        signal.pause()


def test_audit_log_is_sealed_by_another_process_where_the_one_that_did_is_killed(
    app: Flask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with loop(app, monkeypatch), app.app_context():
        ready = tmp_path / "ready"
        process = forked(seal_alone, app.extensions["atrium.config"], ready)
        try:
            wait_until(ready.exists)
            change(1, 0)
            if db.has_one_writer():
                time.sleep(3 * sealing.GATHER_SECONDS)
                assert sealing.due() == [ACCOUNT]
                sealing.settle(ACCOUNT)  # a reader waits for nobody
                change(1, 1)
                assert sealing.due() == [ACCOUNT]
        finally:
            process.kill()
            process.join()
        wait_until(lambda: not sealing.due())
        assert verify.verify_all(AUDIT, ACCOUNT)["valid"]
