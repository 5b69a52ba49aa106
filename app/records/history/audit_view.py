"""What the audit log tells of a record, and what the record was by it (contract 5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, rules
from app.audit.append import CREATE, DELETE, UPDATE
from app.audit.entries import CHANGES, LOG, join_entries
from app.auth.principal import Principal
from app.collections.definition import Definition
from app.collections.fields import Field, InvalidValue
from app.db import versioned_cache
from app.errors import NotFound
from app.records import store
from app.records.store import reads
from app.types import JSONObject

AS_JSON = (rules.Type.NUMBER, rules.Type.BOOLEAN, rules.Type.JSON)
CHANGE = ("occurred_at", "request_id", "operation")  # what the entries of one change share
State = JSONObject
Reader = Callable[[Definition, str, str], Sequence[Any]]


@dataclass
class RecordHistory:
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
            state |= self._system_values(place)
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

    def _system_values(self, place: int) -> State:
        # A record whose deletion was undone was made more than once.
        before = [e for e in self.entries[:place] if e.record_id == self.record_id]
        first = next((e for e in reversed(before) if e.operation == CREATE), self.entries[0])
        made = first.operation == CREATE
        return {
            "id": self.record_id,
            "account_id": self.account_id,
            "created_at": first.occurred_at,
            "created_by": _user(first) if made else None,
        }

    def at(self, moment: datetime, seen: Collection[str] | None = None) -> State | None:
        """The record at a moment, with who had changed it last; None where there was none.

        Whoever changed no field that is `seen` does not count. Raises NotFound where it is erased.
        """
        return self._kept(sum(e.occurred_at <= moment for e in self.entries), moment, seen)

    def after(self, audit_id: int) -> State | None:
        """The record after the whole change that an entry is of. Raises NotFound."""
        chosen = [e for e in self.entries if e.id == audit_id and e.record_id == self.record_id]
        if not chosen:
            raise NotFound("There is no such entry in the history of this record.")
        return self.at(chosen[0].occurred_at)

    def last(self) -> State | None:
        """The record as it stands, or as it was before it was deleted."""
        if self.present is not None:
            return dict(self.present)
        end = self._end()
        return self._settled(*end) if end else None

    def lost(self) -> State | None:
        """The record as it was before it was deleted. Raises NotFound where it is erased."""
        end = self._end()
        return self._kept(*end) if end else None

    def _end(self) -> tuple[int, datetime] | None:
        gone = [n for n, e in enumerate(self.entries) if e.operation == DELETE]
        last = [n for n in gone if _is_same_change(self.entries[n], self.entries[gone[-1]])]
        return (last[0], self.entries[last[0]].occurred_at) if last else None

    def _kept(
        self, first: int, moment: datetime, seen: Collection[str] | None = None
    ) -> State | None:
        state = self._settled(first, moment, seen)
        mine = [e for e in reversed(self.entries[first:]) if e.record_id == self.record_id]
        # The first entry from there on says what a field was.
        telling = {e.column_name: e for e in mine}
        if state and any(e.salt is None for n, e in telling.items() if n in state):
            raise NotFound("What the record was then is erased.")
        return state

    def _settled(
        self, first: int, moment: datetime, seen: Collection[str] | None = None
    ) -> State | None:
        state = self.before(first)
        before = self._mine(self.entries[:first], seen)
        undone = self._mine(self.entries[first:], seen)
        # A change that left all as it was has no entries, but its moment stands in the record.
        if state is not None and (undone or state["updated_at"] > moment):
            last = before[-1] if before else None
            state["updated_at"] = last.occurred_at if last else state["created_at"]
            state["updated_by"] = _user(last) if last else state["created_by"]
        return _computed(self.definition, state) if state is not None else None

    def _mine(self, entries: Sequence[Any], seen: Collection[str] | None) -> list[Any]:
        mine = [e for e in entries if e.record_id == self.record_id]
        return mine if seen is None else [e for e in mine if e.column_name in seen]


def load_history(
    definition: Definition, record_id: str, by: Principal, read: Reader
) -> RecordHistory:
    """What there is to tell of a record, by the entries that `read` reads."""
    account_id = by.require_account_id()
    present = reads.read_one(
        definition, account_id, record_id, versioned_cache.combine(*definition.version_checks)
    )
    alive = present is not None and read is last_entries
    entries = [] if alive else read(definition, account_id, record_id)
    return RecordHistory(definition, record_id, account_id, present, entries)


def all_entries(definition: Definition, account_id: str, record_id: str) -> Sequence[Any]:
    """Everything that concerns a record, also defaults given to many."""
    told = CHANGES.c
    filled = sa.and_(told.record_id == definition.id, told.operation == UPDATE)
    chosen = join_entries(
        told.account_id == account_id,
        told.table_name == definition.table_name,
        _of_present(definition),
        sa.or_(told.record_id == record_id, filled),
    )
    return db.connection().execute(sa.select(LOG).select_from(chosen).order_by(LOG.c.id)).all()


def last_entries(definition: Definition, account_id: str, record_id: str) -> Sequence[Any]:
    """What tells the last state of a deleted record: all but the changes between, save the last."""
    mine = changes_of(definition, account_id, record_id)
    between = CHANGES.c.operation == UPDATE
    last = sa.select(sa.func.max(CHANGES.c.last_id)).where(*mine, between).scalar_subquery()
    chosen = join_entries(*mine, sa.or_(~between, LOG.c.id == last))
    return db.connection().execute(sa.select(LOG).select_from(chosen).order_by(LOG.c.id)).all()


def changes_of(definition: Definition, account_id: str, record_id: str) -> list[Any]:
    """The condition of what tells of a record itself."""
    mine = {"account_id": account_id, "table_name": definition.table_name}
    others = [_aside(CHANGES.c[name]) == value for name, value in mine.items()]
    return [CHANGES.c.record_id == record_id, _of_present(definition), *others]


def _of_present(definition: Definition) -> Any:
    # A collection that was deleted may have had the name before: other types, rules and masks.
    return CHANGES.c.occurred_at >= definition.created_at


def _aside(column: Any) -> object:
    # SQLite knows no statistics, and would begin with all changes of the table.
    return column.concat("") if db.connection().dialect.name == "sqlite" else column


def changes(mine: Sequence[Any]) -> sa.Select[Any]:
    """What a record went through, each with the id of its `newest` entry."""
    same = [LOG.c[name] for name in CHANGE]
    newest = sa.select(*same, sa.func.max(LOG.c.id).label("newest"))
    return newest.select_from(join_entries(*mine)).group_by(*same)


def stored(field: Field, text: str | None) -> object:
    """What an entry's text says of a field, in its stored form."""
    if text is None or field.rule_type is rules.Type.JSON:
        return text  # which rows hold as text, too
    value = read_json(field, text)
    with suppress(InvalidValue):
        return field.clean(value)
    return value  # the field has become stricter since


def read_json(field: Field, text: str | None) -> object:
    """What an entry's text says of a field, as it was sent."""
    if text is None or field.rule_type not in AS_JSON:
        return text
    return orjson.loads(text)


def _computed(definition: Definition, state: State) -> State:
    context = rules.Context(state, now=clock.now())
    return state | {
        name: rules.evaluate(node, context) for name, node in definition.computed.items()
    }


def _is_same_change(one: object, other: object) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in CHANGE)


def _user(entry: Any) -> str | None:
    return None if entry.user_id in ("system", "anonymous") else str(entry.user_id)
