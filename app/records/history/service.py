"""What a record was: its changes, its state at any moment, and a state written anew (contract 5).

All of it comes from the audit log, read backwards from the record as it stands: so what was changed
while nothing was audited cannot be told, but spoils nothing else. A deleted record keeps its
history, and can be made anew under its id; whatever referred to it stays as it was left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
import sqlalchemy as sa

from app import db
from app.audit.entries import LOG, join_entries
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections import masking
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, Field
from app.db import versioned_cache
from app.errors import Conflict, Forbidden, InvalidValues, NotFound
from app.records import service as records
from app.records.history import audit_view as pasts
from app.records.read import query, views
from app.records.store import references
from app.records.store.sizes import Octets, SizeLimit
from app.types import JSONMapping, JSONObject

TOLD = (
    *("operation", "occurred_at", "user_id", "user_email", "user_name"),
    *("es_username", "es_reason", "es_timestamp", "request_id"),
)
NOT_DELETED = "This record is not deleted."
NOT_YOURS = "You may not write all that this state has."
Shown = JSONObject
State = JSONObject


def get(collection: str, record_id: str, asked: JSONMapping, *, by: Principal) -> Shown:
    """A record as it was at `as_of`. Raises NotFound where there was none, or out of sight.

    The view rule must hold for the record as it stands, and as it was.
    """
    definition = _checked(collection, by)
    access = accesses.for_operation(by, definition, "view")
    found: list[JSONObject] = []
    names = query.names_of(access.readable, asked.get("fields"), found)
    if found:
        raise InvalidValues(found)
    past = pasts.load_history(definition, record_id, by, pasts.all_entries)
    now = past.last()
    # Asked before the past is: that it is erased is told to nobody else.
    then = past.at(asked["as_of"]) if now is not None and _allows(access, now) else None
    if then is None or not _allows(access, then):
        raise NotFound("There is no such record.")
    # Whether a hidden field was changed would tell, of who guesses its value, that it is the one.
    seen = past.at(asked["as_of"], access.readable) or then
    return _shown(access, names or list(access.readable), seen)


def page(
    collection: str, record_id: str, skip: int, limit: int, *, by: Principal
) -> tuple[list[Shown], int]:
    """The changes of a record, the newest first, and how many there are.

    One change is what one transaction did to what the caller may view. Needs the update rule.
    Raises NotFound, Forbidden or AnswerTooLarge.
    """
    definition = _checked(collection, by)
    _, view = _within_reach(definition, record_id, "update", by, pasts.last_entries)
    mine = pasts.changes_of(definition, by.require_account_id(), record_id)
    # Were the others counted, a hidden value would show in whether writing a guess changed it.
    mine.append(LOG.c.column_name.in_(view.readable if view else SYSTEM_FIELDS))
    changes = pasts.changes(mine)
    total = db.connection().scalar(sa.select(sa.func.count()).select_from(changes.subquery()))
    chosen = changes.order_by(sa.desc("newest")).offset(skip).limit(limit).subquery()
    same = (LOG.c[name].is_not_distinct_from(chosen.c[name]) for name in pasts.CHANGE)
    told = join_entries(*mine).join(chosen, sa.and_(*same))
    octets = [sa.func.sum(Octets(one)) for one in (LOG.c.old_value, LOG.c.new_value)]
    lengths = db.connection().execute(sa.select(*octets).select_from(told)).one()
    SizeLimit().take(sum(int(one or 0) for one in lengths))
    rows = db.connection().execute(
        sa.select(LOG, chosen.c.newest).select_from(told).order_by(chosen.c.newest.desc(), LOG.c.id)
    )
    together = groupby(rows, key=attrgetter("newest"))
    return [_told(view, list(entries)) for _, entries in together], total or 0


def restore(
    collection: str,
    record_id: str,
    audit_id: int,
    *,
    if_match: str | None = None,
    by: Principal,
) -> views.RecordView:
    """Write the state after an entry as a new change. Raises what changing a record raises.

    Fields that are required now and had no value then stay as they are.
    """
    definition = _checked(collection, by)
    past, view = _within_reach(definition, record_id, "update", by, pasts.all_entries)
    if past.present is None:
        raise NotFound("This record is deleted.")
    then = past.after(audit_id)
    if then is None:
        raise NotFound("The record was deleted then.")
    body: State = {
        name: None if then[name] is None else field.shown(then[name])
        for name, field in definition.fields.items()
        if then[name] != past.present[name] and not (field.required and then[name] is None)
    }
    # Once more through JSON, as stored texts of JSON are shown without being parsed.
    body = orjson.loads(orjson.dumps(body))
    with _naming_only(view):
        return records.patch(collection, record_id, body, if_match=if_match, by=by)


def revive(collection: str, record_id: str, *, by: Principal) -> views.RecordView:
    """Make a deleted record anew, with its last values and its id.

    For whoever could delete it. Raises Conflict where it is there, and what making one raises.
    """
    definition = _checked(collection, by)
    past, view = _within_reach(definition, record_id, "delete", by, pasts.last_entries)
    if past.present is not None:
        raise Conflict(NOT_DELETED, error="not_deleted")
    state = past.lost() or {}
    body: State = {
        name: field.shown(state[name])
        for name, field in definition.fields.items()
        if state.get(name) is not None
    }
    # Of two who undo it at once the second clashes with the first by the id.
    with _naming_only(view):
        return records.create(
            collection, orjson.loads(orjson.dumps(body)), record_id=record_id, by=by
        )


@contextmanager
def _naming_only(view: Access | None) -> Iterator[None]:
    """Around a write of what the caller has not sent: no fault tells of fields that are hidden."""
    try:
        yield
    except (Forbidden, InvalidValues, Conflict) as error:
        named = {one["field"] for one in error.extra.get("details", ())}
        if named <= {None, *(view.readable if view else SYSTEM_FIELDS)}:
            raise
        raise Forbidden(NOT_YOURS, error="field_denied") from error


def deletable(collection: str, record_id: str, *, by: Principal) -> tuple[Definition, bool]:
    """A record that the caller may delete, or might have, and whether it still is there."""
    definition = _checked(collection, by)
    past, _ = _within_reach(definition, record_id, "delete", by, pasts.last_entries)
    return definition, past.present is not None


def _checked(collection: str, by: Principal) -> Definition:
    by.require_account_id()
    definition = definitions.get(collection)
    versioned_cache.verify([*by.version_checks, *definition.version_checks])
    return definition


def _within_reach(
    definition: Definition, record_id: str, operation: str, by: Principal, read: pasts.Reader
) -> tuple[pasts.RecordHistory, Access | None]:
    access = accesses.for_operation(by, definition, operation)
    past = pasts.load_history(definition, record_id, by, read)
    state = past.last()
    view = (
        accesses.for_operation(by, definition, "view")
        if accesses.is_open(by, definition, "view")
        else None
    )
    seen = state is not None and view is not None and _allows(view, state)
    if state is None or not _allows(access, state):
        raise access.refusal() if seen else NotFound("There is no such record.")
    return past, view if seen else None


def _allows(access: Access, state: JSONMapping) -> bool:
    if access.condition is None:
        return True
    led_to = references.resolve_one(access.definition, state, access.follows)
    return access.allows({**state, **led_to})


def _shown(access: Access, names: Sequence[str], state: JSONMapping) -> Shown:
    fields = {name: access.readable[name] for name in names}
    return {
        name: _masked(access, name, None if state[name] is None else field.shown(state[name]))
        for name, field in fields.items()
    }


def _masked(access: Access, name: str, value: object) -> object:
    # By the name of the column: a system field does not know its own.
    return masking.masked(access.readable[name], value) if name in access.masked else value


def _told(view: Access | None, entries: Sequence[Any]) -> Shown:
    told: Shown = {name: getattr(entries[0], name) for name in TOLD}
    readable = view.readable if view else {}
    changes = [
        _change(view, readable[entry.column_name], entry)
        for entry in entries
        if view and entry.column_name in readable and entry.column_name not in SYSTEM_FIELDS
    ]
    return {"audit_id": entries[-1].id, **told, "changes": changes}


def _change(view: Access, field: Field, entry: Any) -> Shown:
    values = {
        name: _masked(view, field.name, pasts.read_json(field, getattr(entry, name)))
        for name in ("old_value", "new_value")
    }
    masked = field.name in view.masked
    return {"field": field.name, **values, "masked": masked, "erased": entry.salt is None}
