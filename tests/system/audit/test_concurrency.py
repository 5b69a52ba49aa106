"""Many processes write to a few accounts at once: every chain stays whole."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from flask import Flask

from app import config, create_app, db
from app.audit import append, sealing
from app.audit.chain import verify
from app.audit.log import AUDIT
from app.audit.models import AuditChange
from app.context import deadline
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


def test_audit_log_of_stuck_account_holds_up_no_writer_and_no_other_account(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where somebody holds the head of its chain."""
    with app.app_context():
        for account_id in ACCOUNTS:
            append_to(account_id)
        sealing.settle(None)
        if db.db.engine.dialect.name == "sqlite":  # one writer at a time, and no lock to hold
            assert verify.verify_all(AUDIT)["valid"]
            return
        engine = db.db.engine.execution_options(isolation_level="READ COMMITTED")
        with engine.begin() as other:
            held = sa.text("SELECT 1 FROM audit_heads WHERE account_id = :id FOR UPDATE")
            other.execute(held, {"id": ACCOUNTS[0]})
            for account_id in ACCOUNTS:
                append_to(account_id)
            monkeypatch.setattr(sealing, "STUCK_SECONDS", 0.5)
            sealing.seal_due()
            with deadline.within(deadline.Limit(0.5)):
                with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                    sealing.settle(ACCOUNTS[0])
                found = verify.verify_all(AUDIT)
            assert sealing.due() == [ACCOUNTS[0]]
        assert (found["valid"], found["unsealed"]) == (True, 1)
        found = verify.verify_all(AUDIT)
        assert (found["valid"], found["unsealed"], found["checked"]) == (True, 0, 6)


def append_to(account_id: str) -> None:
    """Append an entry."""
    with db.transaction():
        target = (append.CREATE, "col_posts", "1")
        append.record(append.Change(account_id, target, [("id", None, "1")]))
