"""Starts and wakes instances on events of an account's users, groups and invitations.

In the transaction of the change, as for records (`app/workflows/triggers/record_events.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from app import clock, db, events
from app.context import actor, tenancy
from app.ids import new_id
from app.operator import store
from app.operator.types import OF_WORKFLOWS
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.workflows.engine import event_waits
from app.workflows.language import expressions
from app.workflows.models import Trigger
from app.workflows.triggers import record_events, start

NO_COLLECTION = ""


@events.subscribe(events.Happened)
def note(event: events.Happened) -> None:
    """Start the workflows of an event, and wake waiting instances before the commit."""
    if event.type not in OF_WORKFLOWS:
        return
    with tenancy.in_account(event.account_id):
        listeners = record_events.listeners_of(event.account_id)
        starting = listeners.started_by(event.type, NO_COLLECTION)
        is_awaited = listeners.may_await(event.type, NO_COLLECTION)
        if starting or is_awaited:
            _notify(event, starting, is_awaited)


def _notify(
    event: events.Happened, starting: list[record_events.Listener], is_awaited: bool
) -> None:
    visible: JSONObject = {
        "event": event.type,
        "account_id": event.account_id,
        "at": clock.iso(clock.now()),
        "actor": store.shown(actor.current(), event.account_id),
        "data": dict(event.data),
    }
    root_id = new_id()
    for listener in dict.fromkeys(starting):
        if all(_holds(condition, visible, {}) for condition in listener.conditions):
            row = start.row(listener, visible, Trigger.EVENT, root_id=root_id)
            if row is not None:
                db.before_commit(_write, (event.account_id, row))
    if is_awaited:
        db.before_commit(_wake_all, partial(_wake, event, visible))


def _holds(condition: str | None, visible: JSONMapping, known: JSONMapping) -> bool:
    names = {"event": visible, "trigger": visible, "data": visible["data"], **known}
    return not condition or expressions.holds(condition, names, clock.now())


def _write(rows: list[tuple[str, start.Row]]) -> None:
    for account_id in sorted({account_id for account_id, _ in rows}):
        with tenancy.in_account(account_id):
            start.write([row for owner, row in rows if owner == account_id])


def _wake_all(callbacks: list[Any]) -> None:
    for callback in callbacks:
        callback()


def _wake(event: events.Happened, visible: JSONObject) -> None:
    with tenancy.in_account(event.account_id):
        for waiting in event_waits.awaiting(event.account_id, event.type, NO_COLLECTION):
            if _holds(waiting.condition, visible, serialization.loads(waiting.known)):
                event_waits.deliver(waiting, visible)
