"""Instances that wait for an event: one row each, which the event's transaction fills in.

A wait starts in a transaction that holds the account's lock exclusively; a transaction that
publishes such an event takes it shared and then reads the waits. So an event either commits
before the wait starts or finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app import db, jobs
from app.db import counts
from app.db.functions import now_if
from app.errors import Forbidden
from app.ids import new_id
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.workflows import versions
from app.workflows.engine import queue
from app.workflows.engine.position import Place
from app.workflows.language import expressions
from app.workflows.language.definition import event_name
from app.workflows.models import INSTANCES, SUBSCRIPTIONS, InstanceState

EVENTS = "events"
MAX_AWAITING = 10_000  # each event of the account reads all of them


def is_full(account_id: str) -> bool:
    """Whether an account has the maximum of waiting instances."""
    same_account = [SUBSCRIPTIONS.c.account_id == account_id]
    return counts.count_up_to(SUBSCRIPTIONS, same_account, MAX_AWAITING) >= MAX_AWAITING


def subscribe(run: Any, place: Place) -> None:
    """Make an instance wait for an event, from the end of the open transaction on."""
    queue.lock(EVENTS, run.account_id)
    step, collection = place.step.settings, place.step.settings.get("collection")
    place.spot["subscription"] = new_id()
    instance_values = expressions.instance_values(step.get("condition"), run.names(place))
    row = {
        "account_id": run.account_id,
        "id": place.spot["subscription"],
        "instance_id": run.id,
        "place": place.path,
        "event": event_name(step["event"]),
        "collection": collection.lower() if collection else None,
        "condition": step.get("condition"),
        "known": serialization.dumps_text(instance_values),
        "owner_id": run.version.owner_id,
        "owner_home": run.version.owner_home,
    }
    db.connection().execute(sa.insert(SUBSCRIPTIONS).values(**row))


def arrived_events(run: Any) -> JSONObject:
    """The events that arrived for an instance, by subscription."""
    same_instance = (
        SUBSCRIPTIONS.c.account_id == run.account_id,
        SUBSCRIPTIONS.c.instance_id == run.id,
    )
    query = sa.select(SUBSCRIPTIONS.c.id, SUBSCRIPTIONS.c.happened)
    rows = db.connection().execute(
        query.where(*same_instance, SUBSCRIPTIONS.c.happened.is_not(None))
    )
    return {row.id: row.happened for row in rows}


def take_event(run: Any, place: Place) -> tuple[object, bool]:
    """The awaited event if it arrived, and whether it has unmasked personal data.

    Removes the subscription. Raises Forbidden if the event arrived and no owner may see it.
    """
    same_subscription = _subscription_of(run, place)
    statement = (
        sa.delete(SUBSCRIPTIONS).where(*same_subscription).returning(SUBSCRIPTIONS.c.happened)
    )
    text = db.connection().scalar(statement)
    if not text:
        return None, False
    stored = serialization.loads(text)
    if stored["event"] is None:
        raise Forbidden(versions.OWNER_GONE)
    return stored["event"], stored["personal"]


def unsubscribe(run: Any, place: Place) -> None:
    """Remove the subscription of a place, in the open transaction."""
    if "subscription" in place.spot:
        db.connection().execute(sa.delete(SUBSCRIPTIONS).where(*_subscription_of(run, place)))


def _subscription_of(run: Any, place: Place) -> tuple[Any, ...]:
    table = SUBSCRIPTIONS.c
    return (table.account_id == run.account_id, table.id == place.spot["subscription"])


def awaiting(account_id: str, event: str, collection: str) -> Sequence[Any]:
    """The subscriptions to such an event; new ones wait for the end of this transaction."""
    queue.lock(EVENTS, account_id, shared=True)
    table = SUBSCRIPTIONS.c
    matches_collection = sa.or_(table.collection.is_(None), table.collection == collection)
    conditions = (table.account_id == account_id, table.event == event, matches_collection)
    query = sa.select(SUBSCRIPTIONS).where(*conditions, table.happened.is_(None))
    return db.connection().execute(query.order_by(table.instance_id)).all()


def get_version(subscription: Any) -> versions.Version | None:
    """The version of the steps that the waiting instance runs."""
    same_instance = (
        INSTANCES.c.account_id == subscription.account_id,
        INSTANCES.c.id == subscription.instance_id,
    )
    query = sa.select(INSTANCES.c.workflow_id, INSTANCES.c.version).where(*same_instance)
    row = db.connection().execute(query).first()
    if row is None:
        return None
    return versions.get(subscription.account_id, row.workflow_id, row.version)


def deliver(subscription: Any, event: JSONMapping | None, personal: bool = False) -> None:
    """Store the event of a waiting instance and make it due, in the open transaction.

    Without an event: it arrived, but its owner may no longer act.
    """
    connection, table = db.connection(), SUBSCRIPTIONS.c
    same_subscription = (table.account_id == subscription.account_id, table.id == subscription.id)
    statement = sa.update(SUBSCRIPTIONS).where(*same_subscription, table.happened.is_(None))
    stored = serialization.dumps_text({"event": event, "personal": personal})
    if connection.execute(statement.values(happened=stored)).rowcount != 1:
        return
    same_instance = (
        INSTANCES.c.account_id == subscription.account_id,
        INSTANCES.c.id == subscription.instance_id,
    )
    due_at = now_if(INSTANCES.c.status == InstanceState.WAITING, INSTANCES.c.due_at)
    values = {"nudges": INSTANCES.c.nudges + 1, "due_at": due_at}
    connection.execute(sa.update(INSTANCES).where(*same_instance).values(**values))
    jobs.announce_on_commit(WORKFLOWS, subscription.account_id)
