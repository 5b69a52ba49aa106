"""Records before and after their changes, from the stored changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import orjson
import sqlalchemy as sa

from app import clock, db
from app.audit import entries as audit
from app.audit import sealing, unchanged
from app.audit.append import CREATE, DELETE, PEOPLE, UPDATE
from app.audit.unchanged import Unchanged
from app.collections.definitions import ByFormerName, Definition
from app.db import filters
from app.realtime.feed import changes
from app.records import store
from app.records.history.audit_view import to_stored, with_computed
from app.records.store import Row
from app.types import JSONObject

OPERATIONS = {CREATE: "create", UPDATE: "update", DELETE: "delete"}
NOBODY = ("system", "anonymous")
T = TypeVar("T")


class Transition(NamedTuple):
    """A change of a record, with its stored values before and after it (None: no record)."""

    definition: Definition
    change: int
    operation: str
    record_id: str
    user_id: str
    occurred_at: datetime
    actor: JSONObject | None
    """What changed it, without the name of a person."""
    is_restored: bool
    """Whether a creation brought a record back from the trash."""
    before: Row | None
    after: Row | None

    @property
    def is_erased(self) -> bool:
        """Whether it is the deletion of a record that was erased."""
        return self.before is None and self.after is None and self.operation == "delete"


class _Gap(NamedTuple):
    """A value that is not stored with its change: that of a later one, or of the record."""

    change: int
    definition: Definition
    record_id: str
    column: str
    states: Sequence[JSONObject]


def transitions(
    account_id: str, rows: Sequence[Any], definitions: Iterable[Definition]
) -> list[Transition]:
    """The changes with their records; erased ones have neither.

    Without changes of earlier collections of the same names, which had other rules.
    """
    found, gaps, collections = [], list[_Gap](), ByFormerName(definitions)
    for row in rows:
        definition = collections.find(row.table_name, row.occurred_at)
        if definition is None:
            continue
        before, after = (None, None) if row.erased else _states(definition, account_id, row, gaps)
        operation = OPERATIONS[row.operation]
        facts = (row.change, operation, row.record_id, row.user_id, row.occurred_at, _actor(row))
        is_restored = row.operation == CREATE and bool(unchanged.load(row.unchanged).both)
        found.append((definition, *facts, is_restored, before, after))
    if gaps:
        _fill(account_id, gaps, rows, collections)
    return [Transition(*one[:-2], *map(_completed(one[0]), one[-2:])) for one in found]


def _actor(row: Any) -> JSONObject | None:
    actor = audit.named(row._mapping)
    return actor and ({**actor, "name": None} if actor["kind"] in PEOPLE else actor)


def _completed(definition: Definition) -> Callable[[JSONObject | None], Row | None]:
    return lambda state: None if state is None else with_computed(definition, state)


def _states(
    definition: Definition, account_id: str, row: Any, gaps: list[_Gap]
) -> tuple[JSONObject | None, JSONObject | None]:
    rest, names = unchanged.load(row.unchanged), _names(definition, row)
    both = _present(definition, row, rest.both)
    base: JSONObject = dict.fromkeys(definition.table.c.keys())
    base |= {"id": row.record_id, "account_id": account_id} | _stored(definition, both)
    before = after = None
    if row.operation != CREATE:
        before = base | _values(definition, names, row.old_values)
        before |= _stored(definition, rest.before)
    if row.operation != DELETE:
        after = base | _values(definition, names, row.new_values) | _written(row)
        after |= _stored(definition, rest.after)
    if row.operation == UPDATE:
        states = [state for state in (before, after) if state is not None]
        gaps += [
            _Gap(row.change, definition, row.record_id, name, states)
            for name in _missing(definition, names, row, rest)
        ]
    return before, after


def _names(definition: Definition, row: Any) -> list[str | None]:
    """The present names of the columns of a change; None for those that were removed."""
    names, era = orjson.loads(row.columns), definition.era_at(row.occurred_at)
    return [era.present_name(name) for name in names] if era.renamed else names


def _present(definition: Definition, row: Any, texts: Mapping[str, T]) -> Mapping[str, T]:
    era = definition.era_at(row.occurred_at)
    if not era.renamed:
        return texts
    names = ((era.present_name(name), text) for name, text in texts.items())
    return {name: text for name, text in names if name is not None}


def _written(row: Any) -> JSONObject:
    """The system fields that a write sets, as far as they follow from its change."""
    if row.operation == UPDATE:
        return {"updated_at": row.occurred_at}
    user_id = None if row.user_id in NOBODY else row.user_id
    by = {"created_by": user_id, "updated_by": user_id}
    return {"created_at": row.occurred_at, "updated_at": row.occurred_at, **by}


def _missing(
    definition: Definition, names: Sequence[str | None], row: Any, rest: Unchanged
) -> Sequence[str]:
    if row.unchanged is None:  # written by an older version during an upgrade
        return [column.name for column in definition.table.c if column.name not in names]
    return list(_present(definition, row, rest.long))


def _values(definition: Definition, names: Sequence[str | None], array: str | None) -> JSONObject:
    texts = orjson.loads(array) if array else [None] * len(names)
    named = zip(names, texts, strict=True)
    return _stored(definition, {name: text for name, text in named if name is not None})


def _stored(definition: Definition, texts: Mapping[str, str | None]) -> JSONObject:
    values = {}
    for name, text in texts.items():
        if name in definition.fields:
            values[name] = to_stored(definition.fields[name], text)
        elif name in ("created_at", "updated_at"):
            values[name] = clock.parse(str(text))
        elif name in ("created_by", "updated_by"):
            values[name] = text
    return values


def _fill(
    account_id: str,
    gaps: Sequence[_Gap],
    rows: Sequence[Any],
    collections: ByFormerName,
) -> None:
    """Fill gaps in with the old value of the column's next change, or that of the record."""
    by_column: dict[tuple[Definition, str], list[_Gap]] = {}
    for gap in gaps:
        by_column.setdefault((gap.definition, gap.column), []).append(gap)
    for (definition, column), own in by_column.items():
        ids = sorted({gap.record_id for gap in own})
        here = [
            row
            for row in rows
            if collections.find(row.table_name, row.occurred_at) is definition
            and column in _names(definition, row)
        ]
        # The record first: a change meanwhile, once sealed, is found among the later ones.
        mine = store.scope(definition, account_id)
        is_any = filters.is_any_of(definition.table.c.id, ids)
        found = db.connection().execute(sa.select(*definition.selected).where(*mine, is_any))
        present = {row["id"]: row for row in store.rows(definition, found)}
        sealing.settle(account_id)
        later = changes.next_changes(account_id, definition, column, ids, rows[-1].change)
        for gap in own:
            same = (row for row in here if row.record_id == gap.record_id)
            following = next((row for row in same if row.change > gap.change), None)
            following = following or later.get(gap.record_id)
            if following is None:
                value = present.get(gap.record_id, {}).get(column)
            else:
                names = _names(definition, following)
                value = _values(definition, names, following.old_values).get(column)
            for state in gap.states:
                if state.get(column) is None:
                    state[column] = value
