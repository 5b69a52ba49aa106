"""Many processes write to a few accounts at once: every chain stays whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import config, create_app, db
from app.audit import append, insert, verify
from app.audit.models import AuditChange, AuditEntry
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
                    append.record(account_id, append.CREATE, "col_posts", f"{number}-{i}", values)
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
def test_every_chain_is_whole(app: Flask, count: int) -> None:
    written = run(app, count)
    with app.app_context():
        for account_id in ACCOUNTS:
            assert verify.verify_all(account_id)["valid"]
        total = sa.select(sa.func.count()).select_from(AuditEntry)
        mine = total.where(AuditEntry.account_id.in_(ACCOUNTS))
        assert db.connection().scalar(mine) == written


def test_accounts_do_not_wait_for_each_other(app: Flask) -> None:
    """On PostgreSQL, where one writer holds the head of another account."""
    with app.app_context():
        for account_id in ACCOUNTS:
            append_to(account_id)
        if db.db.engine.dialect.name == "sqlite":  # one writer at a time, and no lock to hold
            assert verify.verify_all()["valid"]
            return
        engine = db.db.engine.execution_options(isolation_level="READ COMMITTED")
        with engine.begin() as other:
            held = sa.text("SELECT 1 FROM audit_heads WHERE account_id = :id FOR UPDATE")
            other.execute(held, {"id": ACCOUNTS[0]})
            append_to(ACCOUNTS[1])
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                append_to(ACCOUNTS[0])
        assert verify.verify_all()["valid"]


def test_lists_tell_what_a_process_of_the_former_version_writes(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where a new version starts beside the one that it replaces."""

    def as_before(cursor: Any, chains: Sequence[insert.Chain], told: insert.ActorColumns) -> None:
        for account_id, entries in chains:
            same = told._asdict() | {"occurred_at": entries[0].occurred_at}
            given = [json.dumps(one) for one in (same, [e._asdict() for e in entries])]
            digests = [entry.entry_digest for entry in entries]
            cursor.execute(
                "SELECT append_audit(%s, %s, %s, %s)", (account_id, given[0], digests, given[1])
            )

    with app.app_context():
        if db.db.engine.dialect.name == "sqlite":  # its changes are written by the application
            return
        append_to(ACCOUNTS[0])
        with monkeypatch.context() as former:
            former.setattr(insert, "_insert_few", as_before)
            append_to(ACCOUNTS[0])
        append_to(ACCOUNTS[0])
        assert verify.verify_all(ACCOUNTS[0])["valid"]
        told = sa.select(sa.func.count()).where(AuditChange.account_id == ACCOUNTS[0])
        assert db.connection().scalar(told) == 3


def append_to(account_id: str) -> None:
    """Append an entry, waiting for a lock for a moment only."""
    with db.transaction() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))
        append.record(account_id, append.CREATE, "col_posts", "1", [("id", None, "1")])
