"""Many processes write to a few accounts at once: every chain stays whole."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing.process import BaseProcess

import pytest
import sqlalchemy as sa
from flask import Flask

from app import config, create_app, db
from app.audit import append, sealing
from app.audit.chain import verify
from app.audit.entries import iter_entries
from app.audit.log import AUDIT
from app.audit.models import AuditChange
from app.context import tenancy
from tests.processes import forked

ACCOUNTS = [f"019a9f00-0000-7000-8000-00000000000{i}" for i in range(3)]
PROCESSES = 8


def write(settings: config.Config, number: int, count: int) -> None:
    """Write transactions to one account, or to all three in a varying order."""
    app = create_app(settings)
    with app.app_context():
        for i in range(count):
            chosen = ACCOUNTS if i % 5 == 0 else [ACCOUNTS[(number + i) % 3]]
            with db.transaction():
                for account_id in chosen[:: 1 if i % 2 else -1]:
                    values = [("title", None, f"{number}"), ("n", None, f"{i}")]
                    target = (append.CREATE, "col_posts", f"{number}-{i}")
                    append.record(append.Change(account_id, target, values))
        db.db.session.remove()


def run(app: Flask, count: int) -> int:
    """Have all processes write. Returns how many entries there must be."""
    settings = app.extensions["atrium.config"]
    workers = [forked(write, settings, n, count) for n in range(PROCESSES)]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    return sum(2 * (3 if i % 5 == 0 else 1) for i in range(count)) * PROCESSES


@pytest.mark.parametrize("count", [10, pytest.param(625, marks=pytest.mark.slow)])
def test_audit_chain_is_valid_after_concurrent_processes(app: Flask, count: int) -> None:
    written = run(app, count)
    with app.app_context():
        for account_id in ACCOUNTS:
            assert verify.verify_all(AUDIT, account_id)["valid"]
        total = sa.select(sa.func.sum(AuditChange.entries))
        mine = total.where(AuditChange.account_id.in_(ACCOUNTS))
        assert db.connection().scalar(mine) == written


def test_audited_writes_do_not_wait_for_a_held_chain(app: Flask) -> None:
    """On PostgreSQL, where a sealer holds the head of an account: nobody else waits for it."""
    with app.app_context():
        for account_id in ACCOUNTS:
            append_to(account_id)
        sealing.seal()
        if db.db.engine.dialect.name == "sqlite":  # one writer at a time, and no lock to hold
            assert verify.verify_all(AUDIT)["valid"]
            return
        engine = db.db.engine.execution_options(isolation_level="READ COMMITTED")
        with engine.begin() as other:
            held = sa.text("SELECT 1 FROM audit_heads WHERE account_id = :id FOR UPDATE")
            other.execute(held, {"id": ACCOUNTS[0]})
            for account_id in ACCOUNTS[:2]:
                append_to(account_id)
            for account_id in ACCOUNTS[:2]:  # as a worker does
                sealing.SEALER.seal(account_id, wait=False)
            assert sealing.SEALER.accounts() == ACCOUNTS[:1]
        assert verify.verify_all(AUDIT)["valid"]
        assert sealing.SEALER.accounts() == []


def append_to(account_id: str) -> None:
    """Append an entry, waiting for a lock for a moment only."""
    with db.transaction() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
        target = (append.CREATE, "col_posts", "1")
        append.record(append.Change(account_id, target, [("id", None, "1")]))


WRITERS, SEALERS = 4, 3
HOT = ACCOUNTS[0]


def count_up(settings: config.Config, number: int, times: int) -> None:
    """Count a row up, each time after what another process counted, and change one of its own."""
    app = create_app(settings)
    with app.app_context():
        for i in range(times):
            with db.transaction() as session:
                session.execute(sa.text("UPDATE counted SET n = n + 1"))
                n = session.scalar(sa.text("SELECT n - 1 FROM counted"))
                for record_id, values in (
                    ("shared", ("n", f"{n}", f"{n + 1}")),
                    (f"own-{number}", ("i", None, f"{i}")),
                ):
                    target = (append.UPDATE, "col_posts", record_id)
                    append.record(append.Change(HOT, target, [values]))
        db.db.session.remove()


def seal_and_die(settings: config.Config) -> None:
    """Have one process after the other seal until the alarm kills it, at any moment."""
    app = create_app(settings)
    while True:
        seconds = random.uniform(0.01, 0.6)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with app.app_context():
            while True:
                sealing.seal(HOT)


@pytest.mark.parametrize("times", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_sealing_killed_at_any_moment_loses_doubles_and_reorders_nothing(
    app: Flask, times: int
) -> None:
    settings = app.extensions["atrium.config"]
    with app.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text("CREATE TABLE counted (n BIGINT)"))
        session.execute(sa.text("INSERT INTO counted VALUES (0)"))
    sealers = [forked(seal_and_die, settings) for _ in range(SEALERS)]
    writers, seen = list[BaseProcess](), list[int]()
    query = sa.select(AuditChange.first_id).where(AuditChange.account_id == HOT)
    try:
        with app.app_context():
            append_to(HOT)
            while not db.connection().scalars(query).all():
                time.sleep(0.02)  # until the sealers work
            writers += [forked(count_up, settings, n, times) for n in range(WRITERS)]
            while any(writer.is_alive() for writer in writers):
                time.sleep(0.02)
                # No smaller number appears behind a reader.
                newest = db.connection().scalars(query.order_by(AuditChange.first_id)).all()
                assert newest[: len(seen)] == seen
                seen = list(newest)
    finally:
        for process in (*sealers, *writers):
            process.kill()
            process.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert len(seen) > 1  # they were sealed meanwhile
    with app.app_context():
        report = verify.verify_all(AUDIT, HOT)
        assert report["valid"], report
        assert report["checked"] == 1 + 2 * WRITERS * times
        _, *entries = iter_entries([AuditChange.account_id == HOT])
        counted = [one["old_value"] for one in entries if one["record_id"] == "shared"]
        assert counted == [f"{n}" for n in range(WRITERS * times)]
        for number in range(WRITERS):
            own = [one["new_value"] for one in entries if one["record_id"] == f"own-{number}"]
            assert own == [f"{i}" for i in range(times)]
        # What a transaction stored together stays together.
        pairs = zip(entries[::2], entries[1::2], strict=True)
        assert all(one["occurred_at"] == other["occurred_at"] for one, other in pairs)
