"""What tests of webhooks share: making one, delivering on demand, and moving time."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import config, db
from app.db.functions import database_now
from app.outbound.address_policy import Rules
from app.webhooks import delivery
from app.webhooks.dispatch import Dispatcher
from app.webhooks.models import ATTEMPTS, DELIVERIES, Webhook
from tests.builders import Caller

EVENTS = ["create", "update", "delete"]


def make_webhook(owner: Caller, url: str, **changes: Any) -> dict[str, Any]:
    """A new webhook of the caller's account, with its secret."""
    body = {"url": url, "collection": "posts", "events": EVENTS, **changes}
    answer = owner.post("webhooks", body)
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def deliver(app: Flask, rules: Rules | None = None, *, seconds: float = 20) -> None:
    """Deliver what is due until nothing is, as a worker would."""
    with app.app_context():
        woken = threading.Event()
        dispatcher = Dispatcher(rules or delivery.rules(config.current()), woken)
        end = time.monotonic() + seconds
        dispatcher.turn()
        while dispatcher.busy or _is_any_due():
            assert time.monotonic() < end, "deliveries do not come to an end"
            woken.wait(0.05)
            woken.clear()
            dispatcher.turn()
        dispatcher.close(1)
        db.db.session.remove()


def _is_any_due() -> bool:
    due = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.due_at <= database_now())
    return db.connection().execute(due.limit(1)).first() is not None


def deliveries(app: Flask) -> list[Any]:
    """All deliveries as stored, oldest first."""
    with app.app_context():
        return list(db.connection().execute(sa.select(DELIVERIES).order_by(DELIVERIES.c.id)))


def attempts(app: Flask) -> list[Any]:
    """All attempts as stored, oldest first."""
    with app.app_context():
        return list(db.connection().execute(sa.select(ATTEMPTS).order_by(ATTEMPTS.c.id)))


def due_in(app: Flask) -> float | None:
    """In how many seconds the only delivery is due by the database's clock."""
    (one,) = deliveries(app)
    with app.app_context():
        now = db.connection().execute(sa.select(database_now())).scalar_one()
    return (one.due_at - now).total_seconds() if one.due_at else None


def let_pass(app: Flask, seconds: int) -> None:
    """Move everything that deliveries wait for so far into the past."""
    with app.app_context(), db.transaction() as session:
        for row in session.execute(sa.select(DELIVERIES)).all():
            mine = (DELIVERIES.c.account_id == row.account_id, DELIVERIES.c.id == row.id)
            if row.due_at:
                earlier = row.due_at - timedelta(seconds=seconds)
                session.execute(sa.update(DELIVERIES).where(*mine).values(due_at=earlier))
        for webhook in session.scalars(sa.select(Webhook)):
            if webhook.failing_since:
                webhook.failing_since -= timedelta(seconds=seconds)
