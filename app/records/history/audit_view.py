"""Reconstructs former states of a record from the audit log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, rules
from app.audit import sealing
from app.audit.append import CREATE, DELETE, UPDATE
from app.audit.entries import CHANGES, LOG, STARTS, is_of
from app.auth.principal import Principal
from app.collections.definitions import Definition
from app.collections.fields import Field, InvalidValue
from app.db import filters, versioned_cache
from app.db.types import Text
from app.errors import NotFound
from app.records import store
from app.records.store import reads
from app.types import JSONObject

STORED_AS_JSON = (rules.Type.JSON, rules.Type.LIST)
AS_JSON = (rules.Type.NUMBER, rules.Type.BOOLEAN, *STORED_AS_JSON)
CHANGE_COLUMNS = ("occurred_at", "request_id", "operation")  # shared by the entries of one change
State = JSONObject
Reader = Callable[[Definition, str, str], Sequence[Any]]


@dataclass(frozen=True)
class Truncation:
    """The part of a record's history that retention removed."""

    before: datetime
    """The moment of the oldest change that the account's log still has."""
    removed_at: datetime
    last_id: int
    """The last entry that was removed."""


@dataclass
class RecordHistory:
    """A record's entries, oldest first, and its present row (None if deleted)."""

    definition: Definition
    record_id: str
    account_id: str
    present: store.Row | None
    entries: Sequence[Any]

    def before(self, first: int) -> State | None:
        """The stored values before an entry, by its index; None if the record did not exist."""
        state: State | None = dict(self.present) if self.present else None
        for index in range(len(self.entries) - 1, first - 1, -1):
            entry = self.entries[index]
            field = self.definition.fields.get(entry.column_name)
            if entry.record_id != self.record_id:
                self._undo_backfill(state, field, index)
            elif entry.operation == CREATE and entry.column_name == "id":
                state = None
            else:
                if entry.operation == DELETE and state is None:
                    state = self._empty_state(index)
                if state is not None and field is not None:
                    state[field.name] = to_stored(field, entry.old_value)
        return state

    def _undo_backfill(self, state: State | None, field: Field | None, index: int) -> None:
        """Remove a default that was filled in; it was only if the record had no value."""
        if state is None or field is None:
            return
        own_entries = [e for e in self.entries[:index] if e.record_id == self.record_id]
        last_entry = next((e for e in reversed(own_entries) if e.column_name == field.name), None)
        had_no_value = last_entry is None or last_entry.new_value is None
        if had_no_value and state[field.name] == to_stored(field, self.entries[index].new_value):
            state[field.name] = None

    def _empty_state(self, index: int) -> State:
        """Return the system values before an entry, and null for all fields."""
        # Undeleted records have several creations.
        earlier = [e for e in self.entries[:index] if e.record_id == self.record_id]
        first = next((e for e in reversed(earlier) if e.operation == CREATE), self.entries[0])
        return {
            **dict.fromkeys(self.definition.table.c.keys()),
            "id": self.record_id,
            "account_id": self.account_id,
            "created_at": first.occurred_at,
            "created_by": _user(first) if first.operation == CREATE else None,
        }

    def at(self, moment: datetime, visible: Collection[str] | None = None) -> State | None:
        """The record at a moment, with its last editor; None if it did not exist.

        Ignores changes of fields that are not `visible`. Raises NotFound if the state is erased.
        """
        return self._kept(sum(e.occurred_at <= moment for e in self.entries), moment, visible)

    def after(self, audit_id: int) -> State | None:
        """The record after the change of an entry. Raises NotFound."""
        matches = [e for e in self.entries if e.id == audit_id and e.record_id == self.record_id]
        if not matches:
            raise NotFound("There is no such entry in the history of this record.")
        return self.at(matches[0].occurred_at)

    def has(self, audit_id: int) -> bool:
        """Whether an entry is about this record."""
        return any(e.id == audit_id and e.record_id == self.record_id for e in self.entries)

    def last(self) -> State | None:
        """The present record, or its last state before deletion."""
        if self.present is not None:
            return dict(self.present)
        end = self._end()
        return self._settled(*end) if end else None

    def lost(self) -> State | None:
        """The last state before deletion. Raises NotFound if it is erased."""
        end = self._end()
        return self._kept(*end) if end else None

    def _end(self) -> tuple[int, datetime] | None:
        """Return the index and time of the first entry of the last deletion."""
        deletions = [n for n, e in enumerate(self.entries) if e.operation == DELETE]
        change_of = attrgetter(*CHANGE_COLUMNS)
        for index in deletions:
            if change_of(self.entries[index]) == change_of(self.entries[deletions[-1]]):
                return index, self.entries[index].occurred_at
        return None

    def _kept(
        self, first: int, moment: datetime, visible: Collection[str] | None = None
    ) -> State | None:
        state = self._settled(first, moment, visible)
        own_entries = [e for e in reversed(self.entries[first:]) if e.record_id == self.record_id]
        # The first later entry of each field has its value then.
        first_change = {e.column_name: e for e in own_entries}
        if state and any(e.salt is None for n, e in first_change.items() if n in state):
            raise NotFound("This state of the record was erased.")
        return state

    def _settled(
        self, first: int, moment: datetime, visible: Collection[str] | None = None
    ) -> State | None:
        state = self.before(first)
        earlier = self._mine(self.entries[:first], visible)
        later = self._mine(self.entries[first:], visible)
        # Updates without changes have no entries, but set updated_at.
        if state is not None and (later or state["updated_at"] > moment):
            last = earlier[-1] if earlier else None
            state["updated_at"] = last.occurred_at if last else state["created_at"]
            state["updated_by"] = _user(last) if last else state["created_by"]
        return with_computed(self.definition, state) if state is not None else None

    def _mine(self, entries: Sequence[Any], visible: Collection[str] | None) -> list[Any]:
        own = [e for e in entries if e.record_id == self.record_id]
        return own if visible is None else [e for e in own if e.column_name in visible]


def load_history(
    definition: Definition, record_id: str, by: Principal, read: Reader
) -> RecordHistory:
    """Load a record's history with the entries that `read` returns."""
    account_id = by.require_account_id()
    present = reads.read_one(
        definition, account_id, record_id, versioned_cache.combine(*definition.version_checks)
    )
    entries: Sequence[object] = []
    if present is None or read is not load_last_entries:
        sealing.settle(account_id)  # after the row was read: its own changes are among the entries
        entries = read(definition, account_id, record_id)
    return RecordHistory(definition, record_id, account_id, present, entries)


def load_histories(
    definition: Definition, record_ids: Sequence[str], since: datetime, by: Principal
) -> Iterator[RecordHistory]:
    """Load the histories of many records since a moment, which is all that `at` needs for it."""
    account_id, table = by.require_account_id(), definition.table
    versioned_cache.verify(definition.version_checks)
    present = sa.select(*definition.selected).where(
        *store.scope(definition, account_id), filters.is_any_of(table.c.id, record_ids)
    )
    rows = {row["id"]: row for row in store.rows(definition, db.connection().execute(present))}
    sealing.settle(account_id)  # after the rows were read: their own changes are among the entries
    backfilled, own = _entries_since(definition, account_id, record_ids, since)
    for id in record_ids:
        entries = sorted((*backfilled, *own.get(id, ())), key=attrgetter("id"))
        yield RecordHistory(definition, id, account_id, rows.get(id), entries)


def _entries_since(
    definition: Definition, account_id: str, record_ids: Sequence[str], since: datetime
) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
    """The entries of backfilled defaults, and of each record."""
    columns = sa.select(*entry_columns(definition)).order_by(LOG.c.id)
    of_collection = (
        LOG.c.account_id == account_id,
        is_of(definition, LOG.c.table_name, LOG.c.occurred_at),
    )
    recent = LOG.c.occurred_at > since
    is_backfill = (LOG.c.record_id == definition.id, LOG.c.operation == UPDATE)
    backfilled = db.connection().execute(columns.where(*of_collection, recent, *is_backfill)).all()
    # Whether a backfill applied to a record follows from its entries before.
    when = () if backfilled else (recent,)
    mine = filters.is_any_of(LOG.c.record_id, record_ids)
    own: dict[str, list[Any]] = {}
    for entry in db.connection().execute(columns.where(*of_collection, mine, *when)):
        own.setdefault(entry.record_id, []).append(entry)
    return backfilled, own


def load_all_entries(definition: Definition, account_id: str, record_id: str) -> Sequence[object]:
    """All entries of a record, including backfilled defaults."""
    is_backfill = sa.and_(LOG.c.record_id == definition.id, LOG.c.operation == UPDATE)
    conditions = (
        LOG.c.account_id == account_id,
        is_of(definition, LOG.c.table_name, LOG.c.occurred_at),
        sa.or_(LOG.c.record_id == record_id, is_backfill),
    )
    query = sa.select(*entry_columns(definition)).where(*conditions).order_by(LOG.c.id)
    return db.connection().execute(query).all()


def load_last_entries(definition: Definition, account_id: str, record_id: str) -> Sequence[object]:
    """The entries for the last state of a deleted record: creation, last update, deletion."""
    conditions = change_conditions(definition, account_id, record_id)
    is_update = LOG.c.operation == UPDATE
    last = sa.select(sa.func.max(LOG.c.last_id)).where(*conditions, is_update).scalar_subquery()
    chosen = (*conditions, sa.or_(~is_update, LOG.c.id == last))
    query = sa.select(*entry_columns(definition)).where(*chosen).order_by(LOG.c.id)
    return db.connection().execute(query).all()


def truncation_columns(
    definition: Definition, account_id: str, record_id: str
) -> list[sa.ColumnElement[Any]]:
    """The columns that `truncation_of` reads, of a statement of any table."""
    start = STARTS.c.account_id == account_id
    own, oldest = CHANGES.c.account_id == account_id, CHANGES.c.first_id
    account, table_name = map(filters.without_index, (CHANGES.c.account_id, CHANGES.c.table_name))
    is_of_collection = is_of(definition, table_name, CHANGES.c.occurred_at)
    mine = (CHANGES.c.record_id == record_id, account == account_id, is_of_collection)
    found = {
        "removed_at": sa.select(STARTS.c.created_at).where(start),
        "last_id": sa.select(STARTS.c.entry_id).where(start),
        "before": sa.select(CHANGES.c.occurred_at).where(own).order_by(oldest).limit(1),
        "first": sa.select(CHANGES.c.operation).where(*mine).order_by(oldest).limit(1),
    }
    return [query.scalar_subquery().label(name) for name, query in found.items()]


def truncation_of(row: Any) -> Truncation | None:
    """The truncation in a row of `truncation_columns`; None if the history has the creation."""
    if row.last_id is None or row.first == CREATE:
        return None
    return Truncation(row.before, row.removed_at, row.last_id)


def truncation(definition: Definition, account_id: str, record_id: str) -> Truncation | None:
    """The part that retention removed from the history of a record; None if nothing."""
    columns = truncation_columns(definition, account_id, record_id)
    return truncation_of(db.connection().execute(sa.select(*columns)).one())


def change_conditions(definition: Definition, account_id: str, record_id: str) -> list[Any]:
    """The conditions for the entries of a record's own changes."""
    account, table_name = map(filters.without_index, (LOG.c.account_id, LOG.c.table_name))
    is_of_collection = is_of(definition, table_name, LOG.c.occurred_at)
    return [LOG.c.record_id == record_id, account == account_id, is_of_collection]


def entry_columns(definition: Definition) -> list[Any]:
    """The columns of entries, with the present names of fields."""
    others = [column for column in LOG.c if column.name != "column_name"]
    return [*others, present_name(definition).label("column_name")]


def present_name(definition: Definition) -> Any:
    """The present name of the field of an entry; null if it was removed."""
    names = [
        (
            sa.and_(LOG.c.column_name == former, LOG.c.occurred_at < era.until),
            sa.literal(present, Text),
        )
        for era in definition.eras
        for former, present in era.renamed.items()
    ]
    return sa.case(*names, else_=LOG.c.column_name) if names else LOG.c.column_name


def changes(conditions: Sequence[Any]) -> sa.Select[Any]:
    """The changes of a record, each with the id of its `newest` entry."""
    columns = [LOG.c[name] for name in CHANGE_COLUMNS]
    newest = sa.select(*columns, sa.func.max(LOG.c.id).label("newest"))
    return newest.where(*conditions).group_by(*columns)


def to_stored(field: Field, text: str | None) -> object:
    """Convert an entry's text to the stored form of a field."""
    if text is None or field.rule_type in STORED_AS_JSON:
        return text  # stored as text
    value = read_json(field, text)
    with suppress(InvalidValue):
        return field.clean(value)
    return value  # the field's options have become stricter


def read_json(field: Field, text: str | None) -> object:
    """Convert an entry's text to the JSON value of a field."""
    if text is None or field.rule_type not in AS_JSON:
        return text
    return orjson.loads(text)


def with_computed(definition: Definition, state: State) -> State:
    """A state with the values of computed fields."""
    context = rules.Context(state, now=clock.now())
    return state | {
        name: rules.evaluate(node, context) for name, node in definition.computed.items()
    }


def _user(entry: Any) -> str | None:
    return None if entry.user_id in ("system", "anonymous") else str(entry.user_id)
