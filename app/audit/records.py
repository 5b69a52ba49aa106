"""Changes of records, told by event from whoever writes their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts.models import User
from app.audit import append
from app.audit.append import CREATE, DELETE, UPDATE, Value
from app.auth import signatures
from app.collections import definition as definitions
from app.collections.models import Collection

Row = Mapping[str, Any]
OPERATIONS = {"create": CREATE, "update": UPDATE, "delete": DELETE}


@events.subscribe(events.RecordChanged)
def note(event: events.RecordChanged) -> None:
    """One entry per column that changed, and one for the id where a record comes or goes."""
    old, new = event.previous or {}, event.record or {}
    values = _values(event.definition.fields, old, new)
    record_id = (new or old)["id"]
    place = (OPERATIONS[event.operation], event.definition.table_name, record_id)
    append.note(event.account_id, *place, values, at=new.get("updated_at"))


def _values(fields: Mapping[str, Any], old: Row, new: Row) -> Iterator[Value]:
    if not old or not new:
        yield "id", append.text(old.get("id")), append.text(new.get("id"))
    for name in fields:
        before, after = old.get(name), new.get(name)
        if before != after:
            yield name, append.text(before), append.text(after)


@events.subscribe(events.RecordChanged)
def demand_signature(event: events.RecordChanged) -> None:
    """Refuse what nobody signed in a collection that demands it, whichever way it is written."""
    if event.definition.options.get("require_signature"):
        signatures.require()


@events.subscribe(events.CollectionRemoved)
def note_removed(event: events.CollectionRemoved) -> None:
    """One entry for each account whose records go, with their number."""
    definition = event.definition
    for account_id, count in _counts(definition):
        value = ("id", definition.id, None)
        _note_all(definition, account_id, DELETE, value, count)


@events.subscribe(events.RecordsFilled)
def note_filled(event: events.RecordsFilled) -> None:
    """One entry for each field and account whose records are given a default."""
    definition, columns = event.definition, event.definition.table.c
    for name, default in event.defaults.items():
        lacking = [columns[name].is_(None)] if name in columns else []
        for account_id, count in _counts(definition, *lacking):
            value = (name, None, append.text(default))
            _note_all(definition, account_id, UPDATE, value, count)


def _counts(definition: Any, *which: Any) -> list[Any]:
    table = definition.table
    counted = sa.select(table.c.account_id, sa.func.count()).where(*which)
    chosen = counted.group_by(table.c.account_id)
    return list(db.connection().execute(chosen)) if append.enabled() else []


def _note_all(definition: Any, account_id: str, operation: str, value: Value, count: int) -> None:
    extra: dict[str, str | int] = {"collection": definition.name, "count": count}
    append.note(account_id, operation, definition.table_name, definition.id, [value], extra)


@events.subscribe(events.AccountClosed)
def note_closed(event: events.AccountClosed) -> None:
    """One entry for all that a closed account owns, with how many records and users go."""
    account_id = event.account_id
    counts = {"count": _records_of(account_id), "users": _users_of(account_id)}
    value = ("id", account_id, None)
    append.note(account_id, DELETE, "accounts", account_id, [value], counts)


def _records_of(account_id: str) -> int:
    tables = [
        definitions.from_row(row).table for row in db.db.session.scalars(sa.select(Collection))
    ]
    return sum(_count(table, table.c.account_id == account_id) for table in tables)


def _users_of(account_id: str) -> int:
    return _count(User.__table__, User.account_id == account_id)


def _count(table: Any, which: Any) -> int:
    counted = sa.select(sa.func.count()).select_from(table).where(which)
    return db.connection().scalar(counted) or 0
