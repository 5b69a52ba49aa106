"""Erases records and users from instances (contract section 7).

Outputs and settings may repeat a record's values in other words, so an instance that names the
record is emptied as a whole, and cancelled if it is active. An instance that has not started
keeps the record's id only, like webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, events, jobs
from app.audit.append import CREATE
from app.audit.entries import CHANGES, LOG, join_entries
from app.db import like
from app.db.functions import database_now
from app.types import JSONObject
from app.workflows import serialization
from app.workflows.models import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    EVENT,
    INSTANCES,
    LOGS,
    PENDING,
    RUNNING,
    SUBSCRIPTIONS,
)
from app.workflows.triggers.start import NOT_BEGUN

PIECE = 100
ERASED = "The data was erased."
INSTEAD = "***"
KEPT = {
    INSTANCES: (INSTANCES.c.context, INSTANCES.c.position, INSTANCES.c.error_message),
    LOGS: (LOGS.c.input, LOGS.c.output, LOGS.c.error_message),
    SUBSCRIPTIONS: (SUBSCRIPTIONS.c.happened, SUBSCRIPTIONS.c.known),
}


@events.subscribe(events.RecordErased)
def _forget_record(event: events.RecordErased) -> None:
    for account_id in sorted({event.account_id, *_makers(event)}):
        _forget_in(account_id, event.record_id)


def _makers(event: events.RecordErased) -> set[str]:
    """The accounts whose instances created the record: a superadmin's may be of another account."""
    of_record = (CHANGES.c[name] == getattr(event, name) for name in ("account_id", "record_id"))
    made = join_entries(*of_record, CHANGES.c.operation == CREATE)
    by = set(db.connection().scalars(sa.select(LOG.c.request_id).select_from(made).distinct()))
    chosen = sa.select(INSTANCES.c.account_id).where(INSTANCES.c.id.in_(by))
    return set(db.connection().scalars(chosen))


def _forget_in(account_id: str, record_id: str) -> None:
    mine = INSTANCES.c.account_id == account_id
    named = INSTANCES.c.id.in_(_naming(account_id, record_id))
    chosen = sa.select(INSTANCES).where(mine, named).order_by(INSTANCES.c.id)
    # Locked, so that no worker takes what has not begun, and none goes on with what has.
    rows = db.connection().execute(chosen.with_for_update(of=INSTANCES)).all()
    new = [row for row in rows if _has_not_begun(row)]
    for row in new:
        told = _without(serialization.loads(row.context), record_id)
        one = (mine, INSTANCES.c.id == row.id)
        change = sa.update(INSTANCES).where(*one).values(context=serialization.dumps(told))
        db.connection().execute(change)
    begun = [row for row in rows if row not in new]
    for at in range(0, len(begun), PIECE):
        _empty(account_id, begun[at : at + PIECE])


@events.subscribe(events.UserErased)
def _forget_user(event: events.UserErased) -> None:
    """Remove the id and addresses from all texts; instances continue."""
    written = [orjson.dumps(text).decode()[1:-1] for text in (event.user_id, *event.emails)]
    # What the log cuts is JSON within JSON.
    written += [orjson.dumps(text).decode()[1:-1] for text in written]
    parts = sorted(set(map(like.search_key, written)))
    # Addresses are the same in all their spellings; the longest first, where one holds another.
    told = re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True))), re.I)
    mine = INSTANCES.c.account_id == event.account_id
    named = INSTANCES.c.id.in_(_naming(event.account_id, *parts))
    chosen = sa.select(INSTANCES.c.id).where(mine, named).order_by(INSTANCES.c.id)
    if not db.connection().execute(chosen.with_for_update()).all():
        return
    # A worker would write down again what it remembers: another takes over what is stored.
    again = sa.update(INSTANCES).where(mine, named, INSTANCES.c.status == RUNNING)
    taken = {"claim": INSTANCES.c.claim + 1, "due_at": database_now()}
    db.connection().execute(again.values(**taken))
    for table in KEPT:
        _rewrite(table, event.account_id, parts, told)
    db.on_commit(jobs.wake)


def _rewrite(table: Any, account_id: str, parts: Sequence[str], told: re.Pattern[str]) -> None:
    mine, columns = table.c.account_id == account_id, KEPT[table]
    chosen = sa.select(table.c.id, *columns).where(mine, _names(columns, *parts))
    chosen = chosen.order_by(table.c.id).limit(PIECE).with_for_update()
    new = {one.name: sa.bindparam(f"_{one.name}", type_=one.type) for one in columns}
    change = sa.update(table).where(mine, table.c.id == sa.bindparam("_id")).values(**new)
    last = ""
    while rows := db.connection().execute(chosen.where(table.c.id > last)).mappings().all():
        db.connection().execute(change, [_without_words(row, told) for row in rows])
        last = rows[-1]["id"]


def _without_words(row: Mapping[Any, Any], told: re.Pattern[str]) -> JSONObject:
    texts = {f"_{name}": text and told.sub(INSTEAD, text) for name, text in row.items()}
    return {**texts, "_id": row["id"]}


def _naming(account_id: str, *texts: str) -> object:
    ids = {INSTANCES: INSTANCES.c.id, LOGS: LOGS.c.instance_id}
    ids[SUBSCRIPTIONS] = SUBSCRIPTIONS.c.instance_id
    return sa.union(
        *(
            sa.select(ids[table]).where(table.c.account_id == account_id, _names(columns, *texts))
            for table, columns in KEPT.items()
        )
    )


def _names(columns: Any, *texts: str) -> Any:
    return sa.or_(
        *(like.contains_ignoring_case(column, text) for column in columns for text in texts)
    )


def _has_not_begun(row: Any) -> bool:
    is_new = row.status == PENDING and row.position == NOT_BEGUN
    return bool(is_new and row.trigger_type == EVENT)


def _without(value: object, record_id: str) -> object:
    if isinstance(value, list):
        return [_without(one, record_id) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("id") == record_id:
        return {"id": record_id}
    return {name: _without(one, record_id) for name, one in value.items()}


def _empty(account_id: str, rows: list[Any]) -> None:
    connection, ids = db.connection(), [row.id for row in rows]
    mine = (INSTANCES.c.account_id == account_id, INSTANCES.c.id == sa.bindparam("_id"))
    values = ("context", "position", "status", "error_message", "due_at", "completed_at")
    change = sa.update(INSTANCES).where(*mine)
    bound = {name: sa.bindparam(f"_{name}", type_=INSTANCES.c[name].type) for name in values}
    connection.execute(change.values(**bound), [_emptied(row) for row in rows])
    of_these = (LOGS.c.account_id == account_id, LOGS.c.instance_id.in_(ids))
    is_open, failed = LOGS.c.status.in_(ACTIVE), LOGS.c.error_message.is_not(None)
    emptied = {
        "input": sa.null(),
        "output": sa.null(),
        "error_message": sa.case((failed, ERASED), else_=sa.null()),
        "status": sa.case((is_open, CANCELLED), else_=LOGS.c.status),
        "completed_at": sa.func.coalesce(LOGS.c.completed_at, database_now()),
    }
    connection.execute(sa.update(LOGS).where(*of_these).values(**emptied))
    waits = (SUBSCRIPTIONS.c.account_id == account_id, SUBSCRIPTIONS.c.instance_id.in_(ids))
    connection.execute(sa.delete(SUBSCRIPTIONS).where(*waits))


def _emptied(row: Any) -> JSONObject:
    # The names of the steps are nobody's data, and tell how far it came.
    names = serialization.loads(row.context).get("steps", ())
    context = {"trigger": None, "steps": {name: {"output": None} for name in names}}
    is_done = row.status == COMPLETED
    return {
        "_id": row.id,
        "_context": serialization.dumps(context),
        "_position": NOT_BEGUN,
        "_status": COMPLETED if is_done else CANCELLED,
        "_error_message": None if is_done else ERASED,
        "_due_at": None,
        "_completed_at": row.completed_at or clock.now(),
    }
