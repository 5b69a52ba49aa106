"""Erases records and users from instances.

Outputs and settings may repeat a record's values in other words, so an instance that names the
record is emptied as a whole, and cancelled if it is active. An instance that has not started
keeps the record's id only, like webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, events, jobs
from app.audit.append import CREATE
from app.audit.entries import CHANGES
from app.db import filters
from app.db.functions import database_now, now_unless_set
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONObject
from app.web import serialization
from app.workflows.models import ACTIVE, INSTANCES, LOGS, SUBSCRIPTIONS, InstanceState, Trigger
from app.workflows.triggers.start import INITIAL_POSITION

BATCH_SIZE = 100
ERASED = "The data was erased."
REPLACEMENT = "***"
ERASABLE = {
    INSTANCES: (INSTANCES.c.context, INSTANCES.c.position, INSTANCES.c.error_message),
    LOGS: (LOGS.c.input, LOGS.c.output, LOGS.c.error_message),
    SUBSCRIPTIONS: (SUBSCRIPTIONS.c.happened, SUBSCRIPTIONS.c.known),
}


@events.subscribe(events.RecordErased)
def _erase_record(event: events.RecordErased) -> None:
    for account_id in sorted({event.account_id, *_creating_accounts(event)}):
        same_account = INSTANCES.c.account_id == account_id
        is_named = INSTANCES.c.id.in_(_instances_containing(account_id, event.record_id))
        query = sa.select(INSTANCES).where(same_account, is_named).order_by(INSTANCES.c.id)
        # Locked, so that no worker claims or continues them.
        rows = db.connection().execute(query.with_for_update(of=INSTANCES)).all()
        unstarted = [row for row in rows if _has_not_started(row)]
        for row in unstarted:
            redacted = _without_record(serialization.loads(row.context), event.record_id)
            same_instance = (same_account, INSTANCES.c.id == row.id)
            statement = (
                sa.update(INSTANCES)
                .where(*same_instance)
                .values(context=serialization.dumps_text(redacted))
            )
            db.connection().execute(statement)
        started = [row for row in rows if row not in unstarted]
        for start in range(0, len(started), BATCH_SIZE):
            _empty(account_id, started[start : start + BATCH_SIZE])


def _creating_accounts(event: events.RecordErased) -> set[str]:
    """The accounts whose instances created the record: a superadmin's may be of another account."""
    conditions = (CHANGES.c[name] == getattr(event, name) for name in ("account_id", "record_id"))
    created = (*conditions, CHANGES.c.operation == CREATE)
    request_ids = set(
        db.connection().scalars(sa.select(CHANGES.c.request_id).where(*created).distinct())
    )
    query = sa.select(INSTANCES.c.account_id).where(INSTANCES.c.id.in_(request_ids))
    return set(db.connection().scalars(query))


@events.subscribe(events.UserErased)
def _erase_user(event: events.UserErased) -> None:
    """Remove the id and addresses from all texts; instances continue."""
    written = [orjson.dumps(text).decode()[1:-1] for text in (event.user_id, *event.emails)]
    # Cut values in the log are JSON within JSON.
    written += [orjson.dumps(text).decode()[1:-1] for text in written]
    parts = sorted(set(map(filters.search_key, written)))
    # Case-insensitive, as addresses are; longest first, as one may contain another.
    pattern = re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True))), re.I)
    same_account = INSTANCES.c.account_id == event.account_id
    is_named = INSTANCES.c.id.in_(_instances_containing(event.account_id, *parts))
    query = sa.select(INSTANCES.c.id).where(same_account, is_named).order_by(INSTANCES.c.id)
    if not db.connection().execute(query.with_for_update()).all():
        return
    # Invalidate running claims: the worker would write the data again from memory.
    running = sa.update(INSTANCES).where(
        same_account, is_named, INSTANCES.c.status == InstanceState.RUNNING
    )
    claimed = {"claim": INSTANCES.c.claim + 1, "due_at": database_now()}
    db.connection().execute(running.values(**claimed))
    for table in ERASABLE:
        _rewrite(table, event.account_id, parts, pattern)
    jobs.announce_on_commit(WORKFLOWS, event.account_id)


def _rewrite(table: Any, account_id: str, parts: Sequence[str], pattern: re.Pattern[str]) -> None:
    same_account, columns = table.c.account_id == account_id, ERASABLE[table]
    query = sa.select(table.c.id, *columns).where(same_account, _contains_any(columns, *parts))
    query = query.order_by(table.c.id).limit(BATCH_SIZE).with_for_update()
    values = {column.name: sa.bindparam(f"_{column.name}", type_=column.type) for column in columns}
    statement = (
        sa.update(table).where(same_account, table.c.id == sa.bindparam("_id")).values(**values)
    )
    last = ""
    while rows := db.connection().execute(query.where(table.c.id > last)).mappings().all():
        changes = [
            {f"_{name}": text and pattern.sub(REPLACEMENT, text) for name, text in row.items()}
            | {"_id": row["id"]}
            for row in rows
        ]
        db.connection().execute(statement, changes)
        last = rows[-1]["id"]


def _instances_containing(account_id: str, *texts: str) -> object:
    ids = {INSTANCES: INSTANCES.c.id, LOGS: LOGS.c.instance_id}
    ids[SUBSCRIPTIONS] = SUBSCRIPTIONS.c.instance_id
    return sa.union(
        *(
            sa.select(ids[table]).where(
                table.c.account_id == account_id, _contains_any(columns, *texts)
            )
            for table, columns in ERASABLE.items()
        )
    )


def _contains_any(columns: Any, *texts: str) -> Any:
    return sa.or_(
        *(filters.contains_ignoring_case(column, text) for column in columns for text in texts)
    )


def _has_not_started(row: Any) -> bool:
    is_new = row.status == InstanceState.PENDING and row.position == INITIAL_POSITION
    return bool(is_new and row.trigger_type == Trigger.EVENT)


def _without_record(value: object, record_id: str) -> object:
    if isinstance(value, list):
        return [_without_record(item, record_id) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("id") == record_id:
        return {"id": record_id}
    return {name: _without_record(item, record_id) for name, item in value.items()}


def _empty(account_id: str, rows: list[Any]) -> None:
    connection, ids = db.connection(), [row.id for row in rows]
    same_instance = (INSTANCES.c.account_id == account_id, INSTANCES.c.id == sa.bindparam("_id"))
    values = ("context", "position", "status", "error_message", "due_at", "completed_at")
    statement = sa.update(INSTANCES).where(*same_instance)
    parameters = {name: sa.bindparam(f"_{name}", type_=INSTANCES.c[name].type) for name in values}
    connection.execute(statement.values(**parameters), [_emptied_values(row) for row in rows])
    logs_of_instances = (LOGS.c.account_id == account_id, LOGS.c.instance_id.in_(ids))
    is_open, failed = LOGS.c.status.in_(ACTIVE), LOGS.c.error_message.is_not(None)
    log_values = {
        "input": sa.null(),
        "output": sa.null(),
        "error_message": sa.case((failed, ERASED), else_=sa.null()),
        "status": sa.case((is_open, InstanceState.CANCELLED), else_=LOGS.c.status),
        "completed_at": now_unless_set(LOGS.c.completed_at),
    }
    connection.execute(sa.update(LOGS).where(*logs_of_instances).values(**log_values))
    subscriptions = (SUBSCRIPTIONS.c.account_id == account_id, SUBSCRIPTIONS.c.instance_id.in_(ids))
    connection.execute(sa.delete(SUBSCRIPTIONS).where(*subscriptions))


def _emptied_values(row: Any) -> JSONObject:
    # Step names are not personal, and show the progress.
    names = serialization.loads(row.context).get("steps", ())
    context = {"trigger": None, "steps": {name: {"output": None} for name in names}}
    is_done = row.status == InstanceState.COMPLETED
    return {
        "_id": row.id,
        "_context": serialization.dumps_text(context),
        "_position": INITIAL_POSITION,
        "_status": InstanceState.COMPLETED if is_done else InstanceState.CANCELLED,
        "_error_message": None if is_done else ERASED,
        "_due_at": None,
        "_completed_at": row.completed_at or clock.now(),
    }
