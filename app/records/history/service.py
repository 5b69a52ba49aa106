"""History of records: changes, former states, restore and undelete.

States are computed from the audit log, backwards from the present row: unaudited changes are
missing, but do not affect the rest. A deleted record keeps its history, and can be undeleted under
its id; references to it that were cleared stay cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.audit import entries as audit
from app.audit import sealing
from app.audit.entries import LOG
from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions, masking
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.db import versioned_cache
from app.errors import Conflict, Forbidden, InvalidValues, NotFound
from app.records import service as records
from app.records import trash
from app.records.history import audit_view as pasts
from app.records.read import query, views
from app.records.store import Octets, SizeLimit, references
from app.types import JSONMapping, JSONObject
from app.web.preconditions import ANY_VERSION, Preconditions

ENTRY_COLUMNS = (
    *("operation", "occurred_at", "user_id", "user_email", "user_name"),
    *("es_username", "es_reason", "es_timestamp", "request_id"),
)
NOT_DELETED = "This record is not deleted."
TRUNCATED = "history_truncated"
NOT_WRITABLE = "You may not write all fields of this state."
View = JSONObject
State = JSONObject


@dataclass(frozen=True)
class HistoryPage:
    """A page of a record's changes, newest first, and their number."""

    changes: list[View]
    total: int
    truncation: pasts.Truncation | None


def get(collection: str, record_id: str, args: JSONMapping, *, by: Principal) -> View:
    """A record's state at `as_of`. Raises NotFound if there was none, or it is hidden or removed.

    The view rule must allow both the present and the former state.
    """
    definition = _get_definition(collection, by)
    access = accesses.for_operation(by, definition, "view")
    problems: list[JSONObject] = []
    names = query.parse_fields(access.readable, args.get("fields"), problems)
    if problems:
        raise InvalidValues(problems)
    past = pasts.load_history(definition, record_id, by, pasts.load_all_entries)
    current_state = past.last()
    # Check the present first: only those who may view it learn that a state was erased.
    state = None
    if current_state is not None and references.allows(access, current_state):
        truncation = pasts.truncation(definition, past.account_id, record_id)
        if truncation and args["as_of"] < truncation.before:
            raise _truncated(truncation)
        state = past.at(args["as_of"])
    if state is None or not references.allows(access, state):
        raise NotFound("There is no such record.")
    # Ignore changes of hidden fields, which would confirm guesses of their values.
    shown_state = past.at(args["as_of"], access.readable) or state
    shown_names = names or list(access.readable)
    with reads.by_path("history"):
        reads.note_rows(access, [shown_state], shown_names)
    view = {}
    for name in shown_names:
        value = shown_state[name]
        shown = None if value is None else access.readable[name].shown(value)
        view[name] = _masked(access, name, shown)
    return view


def page(collection: str, record_id: str, skip: int, limit: int, *, by: Principal) -> HistoryPage:
    """A page of a record's changes, newest first.

    A change is what one transaction did to visible fields. Requires the update rule. Raises
    NotFound, Forbidden or AnswerTooLarge.
    """
    definition = _get_definition(collection, by)
    if definition.view is not None:
        raise definitions.NoRecordsOfItsOwn
    _, view = _load_visible(definition, record_id, "update", by, pasts.load_last_entries)
    key = (by.require_account_id(), record_id)
    sealing.settle(key[0])
    conditions = pasts.change_conditions(definition, *key)
    # Skip hidden fields: their changes would confirm guesses of their values.
    readable = view.readable if view else SYSTEM_FIELDS
    conditions.append(pasts.present_name(definition).in_(readable))
    changes = pasts.changes(conditions)
    total = sa.select(sa.func.count()).select_from(changes.subquery()).scalar_subquery()
    about = (total.label("total"), *pasts.truncation_columns(definition, *key))
    whole = db.connection().execute(sa.select(*about)).one()
    query = changes.order_by(sa.desc("newest")).offset(skip).limit(limit).subquery()
    same_change = (LOG.c[name].is_not_distinct_from(query.c[name]) for name in pasts.CHANGE_COLUMNS)
    on_page = LOG.join(query, sa.and_(*same_change))
    octets = [sa.func.sum(Octets(column)) for column in (LOG.c.old_value, LOG.c.new_value)]
    measured = sa.select(*octets).select_from(on_page).where(*conditions)
    SizeLimit().take(sum(int(size or 0) for size in db.connection().execute(measured).one()))
    columns = [*pasts.entry_columns(definition), query.c.newest]
    entries = sa.select(*columns).select_from(on_page).where(*conditions)
    rows = db.connection().execute(entries.order_by(query.c.newest.desc(), LOG.c.id))
    groups = groupby(rows, key=attrgetter("newest"))
    changes_shown = [_render_change(view, list(group)) for _, group in groups]
    if view is not None:
        shown = {one["field"] for change in changes_shown for one in change["changes"]}
        place = (definition, by, by.require_account_id(), [record_id])
        with reads.by_path("history"):
            reads.note(*place, view.exposed & shown)
    return HistoryPage(changes_shown, whole.total, pasts.truncation_of(whole))


def restore(
    collection: str,
    record_id: str,
    audit_id: int,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
) -> views.RecordView:
    """Restore the state after an entry as a new change. Raises like changing a record.

    Fields that are required now and had no value then keep their values.
    """
    definition = _get_definition(collection, by)
    past, view = _load_visible(definition, record_id, "update", by, pasts.load_all_entries)
    if past.present is None:
        raise NotFound("This record is deleted.")
    if not past.has(audit_id):
        truncation = pasts.truncation(definition, past.account_id, record_id)
        if truncation and audit_id <= truncation.last_id:
            raise _truncated(truncation)
    state = past.after(audit_id)
    if state is None:
        raise NotFound("The record was deleted then.")
    body: State = {
        name: None if state[name] is None else field.shown(state[name])
        for name, field in definition.fields.items()
        if state[name] != past.present[name] and not (field.required and state[name] is None)
    }
    with _hide_fields_in_errors(view):
        return records.patch(collection, record_id, _parsed(body), conditions=conditions, by=by)


def _truncated(truncation: pasts.Truncation) -> NotFound:
    before = clock.iso(truncation.before)
    message = f"Changes of this record before {before} were removed by retention."
    return NotFound(message, error=TRUNCATED, truncated_before=before)


def undelete(collection: str, record_id: str, *, by: Principal) -> views.RecordView:
    """Undelete a record with its last values and its id.

    Requires the delete rule. Raises Conflict if it exists, and like creating a record.
    """
    definition = _get_definition(collection, by)
    if trash.has(definition, record_id, by=by):
        return trash.restore(collection, record_id, by=by)
    past, view = _load_visible(definition, record_id, "delete", by, pasts.load_last_entries)
    if past.present is not None:
        raise Conflict(NOT_DELETED, error="not_deleted")
    state = past.lost() or {}
    body: State = {
        name: field.shown(state[name])
        for name, field in definition.fields.items()
        if state.get(name) is not None
    }
    # A concurrent undelete conflicts by id.
    with _hide_fields_in_errors(view):
        return records.create(collection, _parsed(body), record_id=record_id, by=by)


def _parsed(body: State) -> State:
    """Return the body with the values of JSON fields, which `shown` leaves as fragments of text."""
    parsed: State = orjson.loads(orjson.dumps(body))
    return parsed


@contextmanager
def _hide_fields_in_errors(view: Access | None) -> Iterator[None]:
    """Hide fields that the caller cannot view in errors of the block."""
    try:
        yield
    except (Forbidden, InvalidValues, Conflict) as error:
        fields = {detail["field"] for detail in error.extra.get("details", ())}
        if fields <= {None, *(view.readable if view else SYSTEM_FIELDS)}:
            raise
        raise Forbidden(NOT_WRITABLE, error="field_denied") from error


def deletable(collection: str, record_id: str, *, by: Principal) -> tuple[Definition, bool]:
    """Check that the caller may delete a record; returns its definition and whether it exists."""
    definition = _get_definition(collection, by)
    if trash.has(definition, record_id, by=by):
        trash.check_deletable(definition, record_id, by=by)
        return definition, False
    past, _ = _load_visible(definition, record_id, "delete", by, pasts.load_last_entries)
    return definition, past.present is not None


def _get_definition(collection: str, by: Principal) -> Definition:
    by.require_account_id()
    definition = definitions.get(collection)
    versioned_cache.verify([*by.version_checks, *definition.version_checks])
    return definition


def _load_visible(
    definition: Definition, record_id: str, operation: str, by: Principal, read: pasts.Reader
) -> tuple[pasts.RecordHistory, Access | None]:
    access = accesses.for_operation(by, definition, operation)
    past = pasts.load_history(definition, record_id, by, read)
    state = past.last()
    view = accesses.if_open(by, definition, "view")
    is_visible = state is not None and view is not None and references.allows(view, state)
    if state is None or not references.allows(access, state):
        raise access.refusal() if is_visible else NotFound("There is no such record.")
    return past, view if is_visible else None


def _masked(access: Access, name: str, value: object) -> object:
    return masking.masked(access.readable[name], value) if name in access.masked else value


def _render_change(view: Access | None, entries: Sequence[Any]) -> View:
    changes = []
    for entry in entries:
        name = entry.column_name
        if view is None or name not in view.readable or name in SYSTEM_FIELDS:
            continue
        field = view.readable[name]
        old_value = _masked(view, name, pasts.read_json(field, entry.old_value))
        new_value = _masked(view, name, pasts.read_json(field, entry.new_value))
        change = {"field": name, "old_value": old_value, "new_value": new_value}
        changes.append({**change, "masked": name in view.masked, "erased": entry.salt is None})
    columns = {name: getattr(entries[0], name) for name in ENTRY_COLUMNS}
    actor = audit.named(entries[0]._mapping)
    return {"audit_id": entries[-1].id, **columns, "actor": actor, "changes": changes}
