"""Guesses beyond the limit do not fill a log, and are not lost either: they are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.audit.security_log import subscribers
from app.jobs import worker
from app.web.rate_limits import Limit
from tests.builders import Caller, Cast
from tests.console.browser import Browser
from tests.security.reading import events


def guess(app: Flask, times: int, account: str = "acme") -> None:
    for number in range(times):
        body = {"account": account, "email": f"x{number}@x.example", "password": "Wrong-horse-1"}
        origin = {"REMOTE_ADDR": f"203.0.113.{number + 1}"}
        Caller(app).post("auth/login", body, environ_overrides=origin)


def waiting(app: Flask) -> list[dict[str, object]]:
    """The payloads of the jobs that wait."""
    with app.app_context():
        job = worker.Job
        query = sa.select(job.payload, job.account_id).where(
            job.kind == "security.record_suppressed"
        )
        rows = db.db.session.execute(query.where(job.status == "pending").order_by(job.id))
        return [{**row.payload, "account_id": row.account_id} for row in rows]


def test_suppressed_sign_in_failures_are_one_event_with_count(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], login_rate_limit="on")
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(subscribers, "FAILURES", Limit("security-log", 2, 3600))
    guess(app, 5)
    assert len(events(cast.alice, kind="sign_in.failed")) == 2
    (payload,) = waiting(app)
    with app.app_context():
        subscribers.record_suppressed(payload)
    (event,) = events(cast.alice, kind="sign_in.suppressed")
    assert (event["details"]["count"], event["user_id"]) == (3, "system")
    assert event["details"]["since"] < event["occurred_at"]
    # A worker that runs the job again finds nothing; the next hour counts anew.
    with app.app_context():
        subscribers.record_suppressed(payload)
    guess(app, 2)
    *_, again = waiting(app)
    with app.app_context():
        subscribers.record_suppressed(again)
    found = [one["details"]["count"] for one in events(cast.alice, kind="sign_in.suppressed")]
    assert found == [3, 2]
    page = Browser(app, cast.alice).get(f"security-log/{cast.alice.account_id}").text
    assert "Further failed sign-ins, only counted" in page
    assert events(cast.charlie, kind="sign_in.suppressed") == []
