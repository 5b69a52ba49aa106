"""Erasing a user from security logs: everywhere, in short transactions, and again after a kill."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit.security_log import erasing
from app.audit.security_log.entries import EVENTS
from app.jobs import worker
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.mailbox import run_jobs
from tests.security.reading import events

DORA = "dora@acme.example"
WRONG = "Wrong-horse-1"


def fail(app: Flask, account: str, email: str = DORA) -> None:
    body = {"account": account, "email": email, "password": WRONG}
    assert Caller(app).post("auth/login", body).status_code == 401


def erase(cast: Cast, user_id: str) -> None:
    assert cast.root.post(f"users/{user_id}/erase").status_code == 200


def mentions(app: Flask, email: str = DORA) -> int:
    """How many sealed events have the address somewhere."""
    with app.app_context():
        columns = (EVENTS.c.details, EVENTS.c.user_email)
        has_it = sa.or_(*(column.contains(email) for column in columns))
        return db.db.session.scalar(sa.select(sa.func.count()).where(has_it)) or 0


def is_valid(caller: Caller) -> bool:
    found = caller.get("account/security-log/verify").json
    return bool(found["valid"])


@pytest.fixture
def dora(app: Flask, cast: Cast) -> str:
    """The id of a user with sign-ins, failures and requests in the log."""
    user = make_user(app, cast.alice.account_id, DORA)
    for _ in range(3):
        fail(app, "acme")
        body = {"account": "acme", "email": DORA, "password": PASSWORD}
        assert Caller(app).post("auth/login", body).status_code == 200
    events(cast.alice)
    return str(user.id)


def test_security_log_erasure_runs_in_short_transactions(
    app: Flask, cast: Cast, dora: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "BATCH_SIZE", 2)
    before = mentions(app)
    erase(cast, dora)
    assert 0 < mentions(app) < before
    run_jobs(app)
    assert mentions(app) == 0
    assert is_valid(cast.alice)


def test_security_log_erasure_resumes_after_kill(
    app: Flask, cast: Cast, dora: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "BATCH_SIZE", 1)
    erase(cast, dora)
    batches, erase_batch = iter(range(3)), erasing._erase_batch

    def killed(*args: Any) -> int:
        if next(batches, None) is None:
            raise KeyboardInterrupt
        return erase_batch(*args)

    with monkeypatch.context() as patch, app.app_context():
        patch.setattr(erasing, "_erase_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            erasing.erase_user(payload_of(app, cast))
    assert mentions(app) > 0
    assert is_valid(cast.alice)
    run_jobs(app)
    assert mentions(app) == 0
    assert is_valid(cast.alice)


def payload_of(app: Flask, cast: Cast) -> dict[str, Any]:
    """The payload of the job that waits."""
    job = worker.Job
    query = sa.select(job.payload).where(job.kind == "security.erase_user")
    payload = db.db.session.scalar(query)
    assert payload
    assert DORA not in str(payload)
    return {**payload, "account_id": cast.alice.account_id}


def test_security_log_erasure_includes_sign_in_failures_at_other_accounts(
    app: Flask, cast: Cast, dora: str
) -> None:
    fail(app, "globex")
    namesake = "bob@acme.example"
    user = make_user(app, cast.charlie.account_id, namesake)
    fail(app, "globex", namesake)
    before = len(events(cast.charlie, kind="sign_in.failed"))
    assert before == 2
    erase(cast, dora)
    erase(cast, cast.bob.id)
    run_jobs(app)
    assert mentions(app) == 0
    stranger, own = events(cast.charlie, kind="sign_in.failed")
    assert stranger["details"] is None
    # globex's own user of this address is somebody else.
    assert (own["target_id"], own["details"]["email"]) == (user.id, namesake)
    assert is_valid(cast.charlie)


def test_security_log_hides_operator_deleted_before_sealing(app: Flask, cast: Cast) -> None:
    second = make_user(app, SYSTEM_ACCOUNT_ID, "ops@operator.example", "admin")
    ops = Caller(app, second)
    query = {"X-Account-ID": cast.alice.account_id}
    assert ops.get("records", headers=query).status_code in (200, 404)
    assert ops.get("groups", headers=query).status_code == 200
    assert cast.root.delete(f"users/{second.id}").status_code in (200, 204)
    shown = [one for one in events(cast.alice) if one["user_id"] == second.id]
    assert shown
    for event in shown:
        assert event["user_name"] == "Platform operator"
        assert (event["user_email"], event["ip_address"], event["user_agent"]) == (None,) * 3
