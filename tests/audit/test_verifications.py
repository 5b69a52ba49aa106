"""Chains are verified every day, and whoever looks sees when and with what result."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.audit import verifications
from app.audit.entries import CHANGES
from app.audit.security_log import verifying
from app.audit.security_log.entries import EVENTS
from app.ops import doctor
from app.web.feature import Finding
from tests.builders import Cast
from tests.console.browser import Browser
from tests.logs import unguarded

VALID = "Last verified on"


def verify_now(app: Flask) -> None:
    with app.app_context():
        verifying.verify_periodically({})


def found_by_doctor(app: Flask) -> Finding:
    with app.app_context():
        return dict(doctor.run_checks())["audit"]


def break_log(app: Flask, log: str, account_id: str) -> None:
    table, column = (CHANGES, "record_id") if log == "audit" else (EVENTS, "target_id")
    with app.app_context(), db.transaction(), unguarded():
        own = sa.update(table).where(table.c.account_id == account_id)
        db.connection().execute(own.values({column: "another"}))


def test_chain_verification_runs_once_a_day(app: Flask, cast: Cast) -> None:
    accounts = {cast.alice.account_id, cast.charlie.account_id, cast.root.account_id}
    cast.alice.post("groups", {"name": "finance"})
    verify_now(app)
    with app.app_context():
        first = {id: verifications.last("audit", id) for id in accounts}
        assert all(one and one.is_valid and one.checked for one in first.values())
        security = verifications.last("security", cast.alice.account_id)
        assert security
        assert security.is_valid
    verify_now(app)
    with app.app_context():
        assert {id: verifications.last("audit", id) for id in accounts} == first
    with time_machine.travel(clock.now() + timedelta(days=2), tick=True):
        verify_now(app)
    with app.app_context():
        again = verifications.last("audit", cast.alice.account_id)
        before = first[cast.alice.account_id]
        assert again
        assert before
        assert again.verified_at > before.verified_at + timedelta(days=1)


@pytest.mark.parametrize("log", ["audit", "security"])
def test_broken_chain_is_reported_by_doctor_metrics_and_console(
    app: Flask, cast: Cast, log: str
) -> None:
    account_id = cast.alice.account_id
    cast.alice.post("groups", {"name": "finance"})
    verify_now(app)
    assert found_by_doctor(app).state == "ok"
    page = "audit" if log == "audit" else f"security-log/{account_id}"
    assert VALID in Browser(app, cast.alice).get(page).text
    break_log(app, log, account_id)
    with time_machine.travel(clock.now() + timedelta(days=2), tick=True):
        verify_now(app)
    finding = found_by_doctor(app)
    assert finding.state == "fail"
    text = Browser(app, cast.alice).get(page).text
    assert VALID in text
    assert "broken" in text
    chains = Browser(app, cast.root).get("audit/chains").text
    assert ("broken" in chains) == (log == "audit")
    with app.app_context():
        assert [one.log for one in verifications.broken(9)] == [log]


def test_manual_chain_verification_is_recorded(app: Flask, cast: Cast) -> None:
    account_id = cast.alice.account_id
    cast.alice.post("groups", {"name": "finance"})
    assert cast.alice.get("account/security-log/verify").json["valid"]
    assert cast.root.get(f"audit-logs/verify?account_id={account_id}").json["valid"]
    with app.app_context():
        for log in ("audit", "security"):
            found = verifications.last(log, account_id)
            assert found
            assert found.is_valid
