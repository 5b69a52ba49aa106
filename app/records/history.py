"""What a record was: its changes, its state at any moment, and a state written anew (contract 5).

All of it comes from the audit log, read backwards from the record as it stands: so what was changed
while nothing was audited cannot be told, but spoils nothing else. A deleted record keeps its
history; it is not restored, as its id and whatever referred to it are gone for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, rules, stamps
from app.audit.append import CREATE, DELETE, UPDATE
from app.audit.models import AuditEntry
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections import masking
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, Field, Refused
from app.errors import InvalidValues, NotFound
from app.records import query, store
from app.records import service as records

LOG = AuditEntry.__table__
AS_JSON = (rules.Type.NUMBER, rules.Type.BOOLEAN, rules.Type.JSON)
TOLD = (
    *("operation", "occurred_at", "user_id", "user_email", "user_name"),
    *("es_username", "es_reason", "es_timestamp", "request_id"),
)
Shown = dict[str, Any]
State = dict[str, Any]


@dataclass
class Past:
    """A record's entries, the oldest first, and how it stands; None where it is deleted."""

    definition: Definition
    record_id: str
    account_id: str
    present: store.Row | None
    entries: Sequence[Any]

    def before(self, first: int) -> State | None:
        """The stored values before the entry at this place of `entries`; None where none were."""
        state: State | None = dict(self.present) if self.present else None
        for place in range(len(self.entries) - 1, first - 1, -1):
            state = self._undone(state, place)
        return state

    def _undone(self, state: State | None, place: int) -> State | None:
        entry = self.entries[place]
        if entry.record_id != self.record_id:
            return self._unfilled(state, place)
        if entry.operation == CREATE and entry.column_name == "id":
            return None
        if entry.operation == DELETE and state is None:
            state = dict.fromkeys(self.definition.table.c.keys())
            state |= self._system_values()
        if state is not None and entry.column_name in self.definition.fields:
            field = self.definition.fields[entry.column_name]
            state[field.name] = stored(field, entry.old_value)
        return state

    def _unfilled(self, state: State | None, place: int) -> State | None:
        # A default was given to whoever had no value; this record only if it never got one.
        filled = self.entries[place]
        field = self.definition.fields.get(filled.column_name)
        if state is None or field is None:
            return state
        mine = [e for e in self.entries[:place] if e.record_id == self.record_id]
        known = next((e for e in reversed(mine) if e.column_name == field.name), None)
        lacked = known is None or known.new_value is None
        if lacked and state[field.name] == stored(field, filled.new_value):
            state[field.name] = None
        return state

    def _system_values(self) -> State:
        first = self.entries[0]
        made = first.operation == CREATE
        return {
            "id": self.record_id,
            "account_id": self.account_id,
            "created_at": first.occurred_at,
            "created_by": _user(first) if made else None,
        }

    def at(self, moment: datetime) -> State | None:
        """The record at a moment, with who had changed it last; None where there was none."""
        return self._settled(sum(entry.occurred_at <= moment for entry in self.entries))

    def after(self, audit_id: int) -> State | None:
        """The record after the whole change that an entry is of. Raises NotFound."""
        chosen = [e for e in self.entries if e.id == audit_id and e.record_id == self.record_id]
        if not chosen:
            raise NotFound("There is no such entry in the history of this record.")
        return self._settled(sum(e.occurred_at <= chosen[0].occurred_at for e in self.entries))

    def last(self) -> State | None:
        """The record as it stands, or as it was before it was deleted."""
        if self.present is not None:
            return dict(self.present)
        gone = [n for n, e in enumerate(self.entries) if e.operation == DELETE]
        return self._settled(gone[0]) if gone else None

    def _settled(self, first: int) -> State | None:
        state = self.before(first)
        undone = [e for e in self.entries[first:] if e.record_id == self.record_id]
        before = [e for e in self.entries[:first] if e.record_id == self.record_id]
        if state is not None and undone:
            last = before[-1] if before else None
            state["updated_at"] = last.occurred_at if last else state["created_at"]
            state["updated_by"] = _user(last) if last else state["created_by"]
        return _computed(self.definition, state) if state is not None else None


def get(collection: str, record_id: str, asked: Mapping[str, Any], *, by: Principal) -> Shown:
    """A record as it was at `as_of`. Raises NotFound where there was none, or out of sight.

    The view rule must hold for the record as it stands, and as it was.
    """
    definition = _checked(collection, by)
    access = accesses.of(by, definition, "view")
    found: list[dict[str, Any]] = []
    names = query.names_of(access.readable, asked.get("fields"), found)
    if found:
        raise InvalidValues(found)
    past = _past(definition, record_id, by)
    now, then = past.last(), past.at(asked["as_of"])
    if now is None or then is None or not _allows(access, now) or not _allows(access, then):
        raise NotFound("There is no such record.")
    return _shown(access, names or list(access.readable), then)


def page(
    collection: str, record_id: str, skip: int, limit: int, *, by: Principal
) -> tuple[list[Shown], int]:
    """The changes of a record, the newest first, and how many there are.

    One change is what one transaction did. Needs the update rule. Raises NotFound or Forbidden.
    """
    definition = _checked(collection, by)
    past, view = _within_reach(definition, record_id, "update", by)
    mine = [entry for entry in past.entries if entry.record_id == past.record_id]
    changes: dict[tuple[Any, ...], list[Any]] = {}
    for entry in reversed(mine):
        key = (entry.occurred_at, entry.request_id, entry.operation)
        changes.setdefault(key, []).insert(0, entry)
    chosen = list(changes.values())[skip : skip + limit]
    return [_told(view, one) for one in chosen], len(changes)


def restore(collection: str, record_id: str, audit_id: int, *, by: Principal) -> Shown:
    """Write the state after an entry as a new change. Raises what changing a record raises.

    Fields that are required now and had no value then stay as they are.
    """
    definition = _checked(collection, by)
    past, _ = _within_reach(definition, record_id, "update", by)
    if past.present is None:
        raise NotFound("This record is deleted.")
    then = past.after(audit_id)
    assert then is not None  # noqa: S101 - its entry says that it was there
    body: State = {
        name: None if then[name] is None else field.shown(then[name])
        for name, field in definition.fields.items()
        if then[name] != past.present[name] and not (field.required and then[name] is None)
    }
    # Once more through JSON, as stored texts of JSON are shown without being parsed.
    return records.patch(collection, record_id, orjson.loads(orjson.dumps(body)), by=by)


def deletable(collection: str, record_id: str, *, by: Principal) -> tuple[Definition, bool]:
    """A record that the caller may delete, or might have, and whether it still is there."""
    definition = _checked(collection, by)
    past, _ = _within_reach(definition, record_id, "delete", by)
    return definition, past.present is not None


def stored(field: Field, text: str | None) -> Any:
    """What an entry's text says of a field, in its stored form."""
    if text is None or field.rule_type is rules.Type.JSON:
        return text  # which rows hold as text, too
    value = _json(field, text)
    with suppress(Refused):
        return field.clean(value)
    return value  # the field has become stricter since


def _json(field: Field, text: str | None) -> Any:
    if text is None or field.rule_type not in AS_JSON:
        return text
    return orjson.loads(text)


def _checked(collection: str, by: Principal) -> Definition:
    by.one_account()
    definition = definitions.named(collection)
    stamps.verify([*by.stamps, definition.stamp])
    return definition


def _past(definition: Definition, record_id: str, by: Principal) -> Past:
    account_id = by.one_account()
    scoped = store.scope(definition, account_id)
    present = store.read_one(definition, scoped, record_id, [definition.stamp])
    return Past(
        definition, record_id, account_id, present, _entries(definition, account_id, record_id)
    )


def _entries(definition: Definition, account_id: str, record_id: str) -> Sequence[Any]:
    filled = sa.and_(LOG.c.record_id == definition.id, LOG.c.operation == UPDATE)
    chosen = sa.select(LOG).where(
        LOG.c.account_id == account_id,
        LOG.c.table_name == definition.table_name,
        sa.or_(LOG.c.record_id == record_id, filled),
    )
    return db.connection().execute(chosen.order_by(LOG.c.id)).all()


def _within_reach(
    definition: Definition, record_id: str, operation: str, by: Principal
) -> tuple[Past, Access | None]:
    access = accesses.of(by, definition, operation)
    past = _past(definition, record_id, by)
    state = past.last()
    view = accesses.of(by, definition, "view") if accesses.may(by, definition, "view") else None
    seen = state is not None and view is not None and _allows(view, state)
    if state is None or not _allows(access, state):
        raise access.refusal() if seen else NotFound("There is no such record.")
    return past, view if seen else None


def _allows(access: Access, state: Mapping[str, Any]) -> bool:
    if access.condition is None:
        return True
    led_to = store.foreseen(access.definition, state, access.follows)
    return access.allows({**state, **led_to})


def _computed(definition: Definition, state: State) -> State:
    context = rules.Context(state, now=clock.now())
    return state | {
        name: rules.evaluate(node, context) for name, node in definition.computed.items()
    }


def _shown(access: Access, names: Sequence[str], state: Mapping[str, Any]) -> Shown:
    fields = {name: access.readable[name] for name in names}
    return {
        name: _masked(access, name, None if state[name] is None else field.shown(state[name]))
        for name, field in fields.items()
    }


def _masked(access: Access, name: str, value: Any) -> Any:
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
        name: _masked(view, field.name, _json(field, getattr(entry, name)))
        for name in ("old_value", "new_value")
    }
    masked = field.name in view.masked
    return {"field": field.name, **values, "masked": masked, "erased": entry.salt is None}


def _user(entry: Any) -> str | None:
    return None if entry.user_id in ("system", "anonymous") else str(entry.user_id)
