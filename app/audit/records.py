"""Auditing changes of records, which are announced by events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts.models import User
from app.audit import append, unchanged
from app.audit.append import CREATE, DELETE, UPDATE, Change
from app.audit.chain.digest import Value
from app.auth import signatures
from app.collections import definitions, trash
from app.collections.definitions import Definition
from app.types import JSONMapping

Row = Mapping[str, Any]
OPERATIONS = {"create": CREATE, "update": UPDATE, "delete": DELETE}


@events.subscribe(events.RecordChanged)
def require_signature(event: events.RecordChanged) -> None:
    """Raise SignatureRequired for an unsigned write in a collection that requires signatures."""
    if event.definition.options.get("require_signature"):
        signatures.require()


@events.subscribe(events.RecordChanged)
def record_change(event: events.RecordChanged) -> None:
    """One entry per changed column, and one for the id of a created or deleted record."""
    old, new = event.previous or {}, event.record or {}
    fields = event.definition.fields
    target = (OPERATIONS[event.operation], event.definition.table_name, (new or old)["id"])
    rest = unchanged.dump(fields, old, event.record) if event.previous else None
    append.record_of_collection(
        event.account_id,
        target,
        list(_values(fields, old, new)),
        new.get("updated_at"),
        unchanged.dump_restored(new) if event.is_restored else rest,
    )


def _values(fields: JSONMapping, old: Row, new: Row) -> Iterator[Value]:
    if not old or not new:
        yield "id", append.text(old.get("id")), append.text(new.get("id"))
    for name in fields:
        before, after = old.get(name), new.get(name)
        if before != after:
            yield name, append.text(before), append.text(after)


@events.subscribe(events.CollectionRemoved)
def record_collection_removed(event: events.CollectionRemoved) -> None:
    """One entry per account with records of the collection, with their number."""
    definition = event.definition
    for account_id, count in _counts(definition):
        value = ("id", definition.id, None)
        _record_bulk(definition, account_id, DELETE, value, count)


@events.subscribe(events.TrashDiscarded)
def record_trash_discarded(event: events.TrashDiscarded) -> None:
    """One entry per account with records in the trash, with their number."""
    for account_id, count in trash.numbers(event.definition.id):
        _record_purged(event.definition, account_id, {"count": count})


def record_purged(definition: Definition, account_id: str, ids: Sequence[str]) -> None:
    """One entry for records that leave the trash for good; it names a single one."""
    named = {"record_id": ids[0]} if len(ids) == 1 else {}
    _record_purged(definition, account_id, {"count": len(ids), **named})


def _record_purged(definition: Definition, account_id: str, which: Mapping[str, str | int]) -> None:
    extra: dict[str, str | int] = {"collection": definition.name, **which}
    target = (DELETE, "trashed_records", definition.id)
    append.record(Change(account_id, target, [("id", definition.id, None)], extra))


@events.subscribe(events.DefaultsBackfilled)
def record_defaults_filled(event: events.DefaultsBackfilled) -> None:
    """One entry per field and account whose records get a default, with their number."""
    definition, columns = event.definition, event.definition.table.c
    for name, default in event.defaults.items():
        conditions = [columns[name].is_(None)] if name in columns else []
        for account_id, count in _counts(definition, *conditions):
            value = (name, None, append.text(default))
            _record_bulk(definition, account_id, UPDATE, value, count)


@events.subscribe(events.FieldsRemoved)
def record_fields_removed(event: events.FieldsRemoved) -> None:
    """One entry per field and account whose records have values, with their number."""
    definition, columns = event.definition, event.definition.table.c
    for name in sorted(event.names):
        for account_id, count in _counts(definition, columns[name].is_not(None)):
            _record_bulk(definition, account_id, DELETE, (name, definition.id, None), count)


def _counts(definition: Definition, *conditions: sa.ColumnElement[bool]) -> list[tuple[str, int]]:
    table = definition.table
    counts = sa.select(table.c.account_id, sa.func.count()).where(*conditions)
    query = counts.group_by(table.c.account_id)
    if not append.enabled():
        return []
    return [(account_id, count) for account_id, count in db.connection().execute(query)]


def _record_bulk(
    definition: Definition, account_id: str, operation: str, value: Value, count: int
) -> None:
    extra: dict[str, str | int] = {"collection": definition.name, "count": count}
    target = (operation, definition.table_name, definition.id)
    append.record(Change(account_id, target, [value], extra))


@events.subscribe(events.AccountClosed)
def record_account_closed(event: events.AccountClosed) -> None:
    """One entry for a closed account, with the number of its records and users."""
    account_id = event.account_id
    counts = {"count": _count_records(account_id), "users": _count_users(account_id)}
    value = ("id", account_id, None)
    append.record(Change(account_id, (DELETE, "accounts", account_id), [value], counts))


def _count_records(account_id: str) -> int:
    tables = [one.table for one in definitions.get_all()]
    return sum(_count(table, table.c.account_id == account_id) for table in tables)


def _count_users(account_id: str) -> int:
    return _count(User.__table__, User.account_id == account_id)


def _count(table: sa.FromClause, condition: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(condition)
    return db.connection().scalar(query) or 0
