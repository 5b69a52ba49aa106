"""Reads and writes records on behalf of a caller.

Each function computes the caller's access (`collections.access`), then runs one statement to read
or one transaction to write. That statement or transaction verifies everything that came from a
cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sqlalchemy.exc import DBAPIError

from app import db
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.access import Access
from app.collections.definitions import Definition
from app.db import errors, versioned_cache
from app.db.versioned_cache import VersionChecks
from app.errors import InvalidValues
from app.records import store
from app.records.read import cursor, file_links, views
from app.records.read import query as queries
from app.records.read.search import HIGHLIGHTS, SearchParts
from app.records.read.views import RecordView, Tree
from app.records.store import SizeLimit, reads
from app.records.store.reads import ListQuery
from app.records.write import cascade, changes
from app.records.write.values import Problems
from app.types import JSONMapping, JSONObject
from app.web.preconditions import ANY_VERSION, Preconditions

Body = JSONMapping


def page(
    collection: str, query: ListQuery, *, by: Principal
) -> tuple[list[JSONObject], int | None]:
    """A page of the records that the caller may list, and their total. Raises AnswerTooLarge."""
    parsed = _parse(collection, query, by)
    rows, total = _read_page(parsed, query)
    return _render_list(parsed, rows, query.file_links), total


def page_ids(collection: str, query: ListQuery, *, by: Principal) -> list[str]:
    """The ids of a page of the records that the caller may list, which shows none of them."""
    query = dataclasses.replace(query, parameters={**query.parameters, "fields": ["id"]})
    parsed = _parse(collection, query, by)
    return [row["id"] for row in _read_page(parsed, query)[0]]


def walk(collection: str, query: ListQuery, *, by: Principal) -> JSONObject:
    """The page at a cursor, with the next and previous cursors."""
    parsed = _parse(collection, query, by)
    position = parsed.walk
    if position is None:
        raise LookupError("a walk without a cursor")
    parts, beside = parsed.parts_from(position), cursor.beside(parsed.keys)
    rows = reads.read_parts(parsed.selection, parts, query.limit, beside)
    page_rows, links = cursor.answer(rows, query.limit, position, parsed.keys)
    return {"items": _render_list(parsed, page_rows, query.file_links), **links}


@dataclasses.dataclass(frozen=True)
class Following:
    """A record of a list, where in the list it is (as JSON), and when it was last changed."""

    record: JSONObject
    position: Sequence[object]
    updated_at: object


def following(
    collection: str, query: ListQuery, position: Sequence[object], *, by: Principal
) -> list[Following]:
    """The records that come after a position in the list's order; at first it is empty."""
    parsed = _parse(collection, query, by)
    values = cursor.decoded(parsed.keys, position) or None
    parts = parsed.parts_from(cursor.CursorPosition("", False, values))
    beside = cursor.beside(parsed.keys)
    rows = reads.read_parts(parsed.selection, parts, query.limit, beside)[: query.limit]
    places = [cursor.position_of(row, parsed.keys) for row in rows]
    items = _render_list(parsed, rows, query.file_links)
    return [
        Following(item, place, row["updated_at"])
        for item, place, row in zip(items, places, rows, strict=True)
    ]


def is_current(collection: str, read: Following, *, by: Principal) -> bool:
    """Whether a record is as it was read, and the caller may still list it. Raises Stale."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "list")
    checks = versioned_cache.combine(*by.version_checks, *definition.version_checks)
    row = reads.read_one(definition, by.account_id, read.record["id"], checks, access)
    return row is not None and row["updated_at"] == read.updated_at


def _parse(collection: str, query: ListQuery, by: Principal) -> queries.Query:
    definition = definitions.get(collection)
    if "trash" in query.parameters and definition.trash_days:
        return queries.parse_trash(definition, query.parameters, query.limit, by)
    access = accesses.for_operation(by, definition, "list")
    return queries.parse(access, query.parameters, query.limit)


def _read_page(parsed: queries.Query, query: ListQuery) -> tuple[list[store.Row], int | None]:
    selection, is_recurring = parsed.selection, parsed.is_recurring
    keys, found = tuple(parsed.keys), parsed.conditions.search
    parts = SearchParts(found, keys) if found else cursor.OffsetParts(keys)
    if query.since is not None:
        recent = parsed.access.definition.table.c.created_at >= query.since
        selection = dataclasses.replace(selection, conditions=(*selection.conditions, recent))
        is_recurring = False
    return reads.read_page(selection, parts, query, cacheable=is_recurring)


def _render_list(
    parsed: queries.Query, rows: Sequence[store.Row], link_seconds: int | None
) -> list[JSONObject]:
    items = views.render_all(rows, parsed.names, parsed.access)
    if parsed.highlights and (search := parsed.conditions.search):
        for item, found in zip(items, search.highlights(rows, parsed.names), strict=True):
            item[HIGHLIGHTS] = found
    if parsed.expanded or link_seconds is not None:
        room = parsed.selection.room
        _complete(parsed.expanded, parsed.access, rows, items, room, link_seconds)
    return items


def _complete(
    expanded: Tree,
    access: Access,
    rows: Sequence[store.Row],
    items: Sequence[JSONObject],
    room: SizeLimit,
    link_seconds: int | None,
) -> None:
    """Add what was asked for beside the fields of records."""
    shown = [views.Shown(access, *one) for one in zip(rows, items, strict=True)]
    sign = None
    if link_seconds is not None:
        sign = partial(file_links.sign, seconds=link_seconds, by=access.caller)
    views.add_expanded(expanded, shown, room, sign)


def get(
    collection: str,
    record_id: str,
    fields: str | None,
    *,
    expanded: str | None = None,
    link_seconds: int | None = None,
    by: Principal,
) -> RecordView:
    """One record. Raises NotFound, also for records of other accounts."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "view")
    problems: list[JSONObject] = []
    names, tree = queries.parse_shape(access, fields, expanded, problems)
    if problems:
        raise InvalidValues(problems)
    version_checks = versioned_cache.combine(
        *by.version_checks, *definition.version_checks, *set(views.expanded_checks(tree))
    )
    row = reads.read_one(access.definition, by.account_id, record_id, version_checks, access)
    if row is None:
        raise changes.not_found(access)
    view = views.render_full(row, access)
    if fields is not None:
        view.keep(names)
    if tree or link_seconds is not None:
        _complete(tree, access, [row], [view], SizeLimit(), link_seconds)
    return view


def create(
    collection: str, body: Body, *, by: Principal, record_id: str | None = None
) -> RecordView:
    """Create a record; `record_id` restores a deleted one under its id.

    Raises InvalidValues, Forbidden or Conflict.
    """
    with unverified_transaction(collection, by) as (definition, unchecked):
        record_ids = None if record_id is None else [record_id]
        change = changes.prepare_create(definition, [body], problems := Problems(), by, record_ids)
        problems.check()
        return changes.save(change, unchecked)[0]


def replace(
    collection: str,
    record_id: str,
    body: Body,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
) -> RecordView:
    """Set every writable field: to the value sent, else to its default, else to null.

    A default that is an expression is for new records: a field that has one keeps its value.
    """
    with _changing(collection, record_id, body, conditions, by) as (access, row):
        return _change(access, row, body, absent_values(access))


def absent_values(access: Access) -> Body:
    """The values of the writable fields that a body which replaces a record does not have."""
    left = access.definition.default_nodes.keys()
    defaults = access.definition.defaults.items()
    return {name: one for name, one in defaults if name in access.writable - left}


def patch(
    collection: str,
    record_id: str,
    body: Body,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
) -> RecordView:
    """Set only the fields that were sent."""
    with _changing(collection, record_id, body, conditions, by) as (access, row):
        return _change(access, row, body, {})


def delete(
    collection: str,
    record_id: str,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
    permanently: bool = False,
) -> None:
    """Delete a record and apply `on_delete`. Raises Conflict if a `restrict` reference remains."""
    with unverified_transaction(collection, by) as (definition, unchecked):
        access = accesses.for_operation(by, definition, "delete")
        rows = changes.lock_for_change(access, [record_id], [{}], Problems(), unchecked)
        changes.check_etag(access, rows[0], conditions)
        cascade.remove(definition, rows, by=by, permanently=permanently)


@contextmanager
def transaction(collection: str, by: Principal) -> Iterator[Definition]:
    """A transaction for changes of records. Raises Stale if it has to be retried."""
    with unverified_transaction(collection, by) as (definition, unchecked):
        unchecked.verify()
        yield definition


@contextmanager
def unverified_transaction(
    collection: str, by: Principal
) -> Iterator[tuple[Definition, VersionChecks]]:
    """The same; the caller verifies the checks it yields before the first write."""
    try:
        with db.transaction():
            definition = definitions.get(collection)
            checks = [*by.version_checks, *definition.version_checks]
            for source in versioned_cache.write_sources:
                checks += source(by)
            yield definition, versioned_cache.combine(*checks)
    except changes.WriteRefused as error:
        if db.in_transaction():  # an outer one: before its end PostgreSQL answers nothing
            raise
        raise changes.explained(error) from error
    except DBAPIError as error:
        if not errors.is_concurrent_change(error):
            raise
        raise versioned_cache.Stale from error  # this one tries again


@contextmanager
def _changing(
    collection: str, record_id: str, body: Body, conditions: Preconditions, by: Principal
) -> Iterator[tuple[Access, store.Row]]:
    with unverified_transaction(collection, by) as (definition, unchecked):
        access = accesses.for_operation(by, definition, "update")
        row = changes.lock_for_change(access, [record_id], [body], Problems(), unchecked)[0]
        changes.check_etag(access, row, conditions)
        yield access, row


def _change(access: Access, row: store.Row, body: Body, absent: Body) -> RecordView:
    problems = Problems()
    change = changes.prepare_update(access, [row], [body], problems, absent)
    problems.check()
    return changes.save(change)[0]
