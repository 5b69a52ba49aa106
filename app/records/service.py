"""What callers do with records (spec 4.2, contract section 5).

Each function decides first what the caller may do (`collections.access`), and then runs one
statement to read, or one transaction to write. Everything it was told from a cache is checked by
that statement or at the start of that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_in
from datetime import datetime
from typing import Any

from sqlalchemy.exc import DBAPIError

from app import db
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.access import Access
from app.collections.definition import Definition
from app.db import errors, versioned_cache
from app.db.versioned_cache import Checked
from app.errors import InvalidValues
from app.records import store
from app.records.read import cursor, expand, query, views
from app.records.read.views import Shown
from app.records.store import reads
from app.records.store.sizes import Room
from app.records.write import cascade, changes, conflicts
from app.records.write.values import Problems
from app.webhooks import outbox as webhooks

Body = Mapping[str, Any]
Parameters = Mapping[str, Sequence[str]]


def page(
    collection: str,
    parameters: Parameters,
    *,
    skip: int,
    limit: int,
    count: bool,
    by: Principal,
    most: int | None = None,
    since: datetime | None = None,
    cut: int | None = None,
) -> tuple[list[dict[str, Any]], int | None]:
    """The records that the caller may list, and how many there are in all.

    Where there are more than `most`, the number is one beyond it. `since` leaves older ones out.
    With `cut`, of long values as many characters. Raises AnswerTooLarge.
    """
    access, asked = _asked(collection, parameters, by)
    definition = access.definition
    recent = [] if since is None else [definition.table.c.created_at >= since]
    rows, total = reads.read_page(
        definition,
        by.account_id,
        access.where,
        [*asked.conditions.where, *recent],
        cursor.Whole(tuple(asked.keys)),
        skip,
        limit,
        count,
        versioned_cache.along(*by.stamps, *definition.stamps, *asked.stamps),
        {**access.parameters, **asked.conditions.bound},
        most,
        wanted=asked.wanted,
        room=(room := Room()),
        kept=asked.kept and not recent,
        cut=cut,
    )
    return _listed(rows, access, asked, room), total


def walk(collection: str, parameters: Parameters, *, limit: int, by: Principal) -> dict[str, Any]:
    """The page at a cursor, and the cursors of those beside it (contract section 5)."""
    access, asked = _asked(collection, parameters, by)
    definition, way = access.definition, asked.walk
    if way is None:
        raise LookupError("a walk without a cursor")
    rows = reads.read_parts(
        definition,
        [*store.scope(definition, by.account_id, access.where), *asked.conditions.where],
        cursor.parts(asked.keys, way),
        limit,
        versioned_cache.along(*by.stamps, *definition.stamps, *asked.stamps),
        {**access.parameters, **asked.conditions.bound},
        wanted=asked.wanted,
        room=(room := Room()),
    )
    shown, links = cursor.answer(rows, limit, way, asked.keys, definition)
    return {"items": _listed(shown, access, asked, room), **links}


def _asked(collection: str, parameters: Parameters, by: Principal) -> tuple[Access, query.Query]:
    access = accesses.of(by, definitions.named(collection), "list")
    return access, query.parse(access, parameters)


def _listed(
    rows: Sequence[store.Row], access: Access, asked: query.Query, room: Room
) -> list[dict[str, Any]]:
    items = views.all_shown(rows, asked.names, access)
    expand.add(asked.expanded, rows, items, access.caller, views.shown, room)
    return items


def get(
    collection: str,
    record_id: str,
    fields: str | None,
    *,
    expanded: str | None = None,
    by: Principal,
) -> Shown:
    """One record. Raises NotFound, also for one of another account."""
    definition = definitions.named(collection)
    access = accesses.of(by, definition, "view")
    found: list[dict[str, Any]] = []
    names, tree = query.shape_of(access, fields, expanded, found)
    if found:
        raise InvalidValues(found)
    checked = versioned_cache.along(*by.stamps, *definition.stamps, *set(expand.stamps_of(tree)))
    asked = (by.account_id, record_id, checked, access.where, access.parameters)
    row = reads.read_one(definition, *asked, to_show=True)
    if row is None:
        raise changes.missing(access)
    shown = views.whole(row, access)
    if fields is not None:
        shown.keep(names)
    expand.add(tree, [row], [shown], by, views.shown, Room())
    return shown


def create(collection: str, body: Body, *, by: Principal, again: str | None = None) -> Shown:
    """Store a new record, `again` under the id that it had before it was deleted.

    Raises InvalidValues, Forbidden or Conflict.
    """
    with writing_last(collection, by) as (definition, unchecked):
        change = changes.prepare_new(definition, [body], problems := Problems(), by)
        problems.check()
        if again is None:
            return changes.store_deferred(change, unchecked)[0]
        unchecked.verify()
        change = replace_in(change, values=[{**change.values[0], "id": again}])
        return changes.store_all(change)[0]


def replace(
    collection: str, record_id: str, body: Body, *, if_match: str | None = None, by: Principal
) -> Shown:
    """Set every field that the caller may write: as sent, else to its default, else to null."""
    with _changing(collection, record_id, body, if_match, by) as (access, row):
        fields = access.definition.fields.items()
        absent = {name: field.default for name, field in fields if name in access.writable}
        return _change(access, row, body, absent)


def patch(
    collection: str, record_id: str, body: Body, *, if_match: str | None = None, by: Principal
) -> Shown:
    """Set the fields that were sent, and no others."""
    with _changing(collection, record_id, body, if_match, by) as (access, row):
        return _change(access, row, body, {})


def delete(collection: str, record_id: str, *, if_match: str | None = None, by: Principal) -> None:
    """Remove a record, and what `on_delete` says goes with it. Raises Conflict while it is held."""
    with writing_last(collection, by) as (definition, unchecked):
        access = accesses.of(by, definition, "delete")
        rows = changes.within_reach(access, [record_id], [{}], Problems(), unchecked)
        changes.check_etag(access, rows[0], if_match)
        cascade.remove(definition, rows, by=by)


@contextmanager
def writing(collection: str, by: Principal) -> Iterator[Definition]:
    """The transaction of a change of records. Raises Stale where it has to be done again."""
    with writing_last(collection, by) as (definition, unchecked):
        unchecked.verify()
        yield definition


@contextmanager
def writing_last(collection: str, by: Principal) -> Iterator[tuple[Definition, Checked]]:
    """The same, with what is still to be checked before anything is written."""
    try:
        with conflicts.explaining(), db.transaction():
            definition = definitions.named(collection)
            listeners = webhooks.stamps_of(by.account_id)
            yield definition, versioned_cache.along(*by.stamps, *definition.stamps, *listeners)
    except DBAPIError as error:
        if not errors.was_overtaken(error):
            raise
        raise versioned_cache.Stale from error  # this one tries again


@contextmanager
def _changing(
    collection: str, record_id: str, body: Body, if_match: str | None, by: Principal
) -> Iterator[tuple[Access, store.Row]]:
    with writing_last(collection, by) as (definition, unchecked):
        access = accesses.of(by, definition, "update")
        row = changes.within_reach(access, [record_id], [body], Problems(), unchecked)[0]
        changes.check_etag(access, row, if_match)
        yield access, row


def _change(access: Access, row: store.Row, body: Body, absent: Body) -> Shown:
    problems = Problems()
    change = changes.prepare_changes(access, [row], [body], problems, absent)
    problems.check()
    return changes.store_deferred(change)[0]
