"""Reads and writes records on behalf of a caller (spec 4.2, contract section 5).

Each function computes the caller's access (`collections.access`), then runs one statement to read
or one transaction to write. That statement or transaction verifies everything that came from a
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

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
from app.records.read import cursor, expand, query, views
from app.records.read.views import RecordView
from app.records.store import reads
from app.records.store.sizes import SizeLimit
from app.records.write import cascade, changes, conflicts
from app.records.write.values import Problems
from app.types import JSONMapping, JSONObject
from app.web.preconditions import ANY_VERSION, Preconditions
from app.webhooks import outbox as webhooks

Body = JSONMapping
Parameters = Mapping[str, Sequence[str]]


def page(
    collection: str,
    parameters: Parameters,
    *,
    skip: int,
    limit: int,
    count: bool,
    by: Principal,
    max_total: int | None = None,
    since: datetime | None = None,
    cut: int | None = None,
) -> tuple[list[JSONObject], int | None]:
    """A page of the records that the caller may list, and their total.

    The total stops at `max_total` + 1. `since` leaves out older records; `cut` truncates long
    values to that many characters. Raises AnswerTooLarge.
    """
    access, parsed = _parse_list(collection, parameters, by)
    room = SizeLimit()
    rows, total = _read_page(access, parsed, room, skip, limit, count, by, since, max_total, cut)
    return _render_list(rows, access, parsed, room), total


def page_ids(
    collection: str,
    parameters: Parameters,
    *,
    skip: int,
    limit: int,
    by: Principal,
    since: datetime | None = None,
) -> list[str]:
    """The ids of a page of the records that the caller may list, which shows none of them."""
    access, parsed = _parse_list(collection, {**parameters, "fields": ["id"]}, by)
    rows, _ = _read_page(access, parsed, SizeLimit(), skip, limit, False, by, since)
    return [row["id"] for row in rows]


def _read_page(
    access: Access,
    parsed: query.Query,
    room: SizeLimit,
    skip: int,
    limit: int,
    count: bool,
    by: Principal,
    since: datetime | None,
    max_total: int | None = None,
    cut: int | None = None,
) -> tuple[list[store.Row], int | None]:
    definition = access.definition
    recent = [] if since is None else [definition.table.c.created_at >= since]
    return reads.read_page(
        definition,
        by.account_id,
        access.where,
        [*parsed.conditions.where, *recent],
        cursor.OffsetParts(tuple(parsed.keys)),
        skip,
        limit,
        count,
        versioned_cache.combine(
            *by.version_checks, *definition.version_checks, *parsed.version_checks
        ),
        {**access.parameters, **parsed.conditions.bound},
        max_total,
        columns=parsed.wanted,
        room=room,
        cacheable=parsed.kept and not recent,
        cut=cut,
    )


def walk(collection: str, parameters: Parameters, *, limit: int, by: Principal) -> JSONObject:
    """The page at a cursor, with the next and previous cursors (contract section 5)."""
    access, parsed = _parse_list(collection, parameters, by)
    definition, position = access.definition, parsed.walk
    if position is None:
        raise LookupError("a walk without a cursor")
    rows = reads.read_parts(
        definition,
        [*store.scope(definition, by.account_id, access.where), *parsed.conditions.where],
        cursor.parts(parsed.keys, position),
        limit,
        versioned_cache.combine(
            *by.version_checks, *definition.version_checks, *parsed.version_checks
        ).within(by.account_id),
        {**access.parameters, **parsed.conditions.bound},
        columns=parsed.wanted,
        room=(room := SizeLimit()),
    )
    page_rows, links = cursor.answer(rows, limit, position, parsed.keys, definition)
    return {"items": _render_list(page_rows, access, parsed, room), **links}


def _parse_list(
    collection: str, parameters: Parameters, by: Principal
) -> tuple[Access, query.Query]:
    access = accesses.for_operation(by, definitions.get(collection), "list")
    return access, query.parse(access, parameters)


def _render_list(
    rows: Sequence[store.Row], access: Access, parsed: query.Query, room: SizeLimit
) -> list[JSONObject]:
    items = views.render_all(rows, parsed.names, access)
    expand.add(parsed.expanded, rows, items, access.caller, views.render, room)
    return items


def get(
    collection: str,
    record_id: str,
    fields: str | None,
    *,
    expanded: str | None = None,
    by: Principal,
) -> RecordView:
    """One record. Raises NotFound, also for records of other accounts."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "view")
    problems: list[JSONObject] = []
    names, tree = query.parse_shape(access, fields, expanded, problems)
    if problems:
        raise InvalidValues(problems)
    version_checks = versioned_cache.combine(
        *by.version_checks, *definition.version_checks, *set(expand.version_checks(tree))
    )
    arguments = (by.account_id, record_id, version_checks, access.where, access.parameters)
    row = reads.read_one(definition, *arguments, to_show=True)
    if row is None:
        raise changes.not_found(access)
    view = views.render_full(row, access)
    if fields is not None:
        view.keep(names)
    expand.add(tree, [row], [view], by, views.render, SizeLimit())
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
        if record_id is None:
            return changes.store_deferred(change, unchecked)[0]
        unchecked.verify()
        return changes.store_change(change)[0]  # at once: the id may be taken


def replace(
    collection: str,
    record_id: str,
    body: Body,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
) -> RecordView:
    """Set every writable field: to the value sent, else to its default, else to null."""
    with _changing(collection, record_id, body, conditions, by) as (access, row):
        fields = access.definition.fields.items()
        absent = {name: field.default for name, field in fields if name in access.writable}
        return _change(access, row, body, absent)


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
    collection: str, record_id: str, *, conditions: Preconditions = ANY_VERSION, by: Principal
) -> None:
    """Delete a record and apply `on_delete`. Raises Conflict if a `restrict` reference remains."""
    with unverified_transaction(collection, by) as (definition, unchecked):
        access = accesses.for_operation(by, definition, "delete")
        rows = changes.lock_for_change(access, [record_id], [{}], Problems(), unchecked)
        changes.check_etag(access, rows[0], conditions)
        cascade.remove(definition, rows, by=by)


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
            quotas = by.account.quotas if by.account else ()
            listeners = webhooks.version_checks(by.account_id, quotas)
            yield (
                definition,
                versioned_cache.combine(*by.version_checks, *definition.version_checks, *listeners),
            )
    except conflicts.WriteRefused as error:
        if db.in_transaction():  # an outer one: before its end PostgreSQL answers nothing
            raise
        raise conflicts.explained(error) from error
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
    return changes.store_deferred(change)[0]
