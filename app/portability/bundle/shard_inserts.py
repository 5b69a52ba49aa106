"""Inserts staged records into shards, where one statement cannot fill several tables (Citus).

Collections follow those that they refer to. References that lead to a later collection, or to the
same one, are set once all records are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db
from app.collections.definitions import Definition
from app.errors import Conflict
from app.portability.bundle import tables

REFERENCES_AT_ONCE = 1000  # set by one statement
CIRCLE = "Required references of {} form a circle, which a sharded database cannot import."


class Staged(NamedTuple):
    """A collection, and the temporary table of its records."""

    definition: Definition
    name: str

    @property
    def targets(self) -> dict[str, str]:
        """The collections that its fields refer to, by the names of the fields."""
        fields = [name for name, one in self.definition.fields.items() if not one.multiple]
        found = {name: self.definition.target(name) for name in fields}
        return {name: target.table_name for name, target in found.items() if target}

    @property
    def required(self) -> set[str]:
        """The reference fields that have a value in every record."""
        columns = self.definition.table.c
        return {name for name in self.targets if not columns[name].nullable}


def insert(staged: Sequence[Staged], account_id: str, piece: int, room: int) -> None:
    """Insert the records of one account, by `piece` and up to `room` bytes. Raises Conflict."""
    present, late = set[str](), list[tuple[Staged, list[str]]]()
    for one in _in_order(staged):
        own, required = one.definition.table_name, one.required
        absent = [
            name
            for name, target in one.targets.items()
            if target not in present and name not in required
        ]
        _insert(one, absent, piece, room)
        late.append((one, absent))
        present.add(own)
    for one, absent in late:
        for name in absent:
            _refer(one, name, account_id)


def _in_order(staged: Sequence[Staged]) -> list[Staged]:
    by_name = {one.definition.table_name: one for one in staged}
    try:
        order = _sorted({name: set(one.targets.values()) for name, one in by_name.items()})
    except CycleError:
        needed = {
            name: {one.targets[field] for field in one.required} for name, one in by_name.items()
        }
        try:
            order = _sorted(needed)
        except CycleError as error:
            names = sorted({by_name[name].definition.name for name in error.args[1]})
            raise Conflict(CIRCLE.format(", ".join(names))) from error
    return [by_name[name] for name in order]


def _sorted(targets: Mapping[str, set[str]]) -> list[str]:
    # What is not staged has no records.
    graph = {name: (found & targets.keys()) - {name} for name, found in targets.items()}
    return list(TopologicalSorter(graph).static_order())


def _insert(one: Staged, absent: Sequence[str], piece: int, room: int) -> None:
    table = one.definition.table
    source, into = tables.plain(table, one.name), tables.plain(table)
    columns = [sa.null().label(c.name) if c.name in absent else c for c in source.columns]
    for first, last in _pieces(source, piece, room):
        query = sa.select(*columns).where(source.c.id.between(first, last))
        rows = db.connection().execute(query.order_by(source.c.id)).mappings()
        db.connection().execute(sa.insert(into), [dict(row) for row in rows])


def _pieces(source: sa.TableClause, piece: int, room: int) -> Iterator[tuple[str, str]]:
    """The first and the last id of each piece."""
    size: sa.ColumnElement[int] = sa.literal_column(f"octet_length(({source.name}.*)::text)")
    query = sa.select(source.c.id, size).order_by(source.c.id).limit(piece)
    after = ""
    while rows := db.connection().execute(query.where(source.c.id > after)).all():
        last, total = after, 0
        for id, length in rows:
            total += length
            if total > room and last != after:
                break
            last = id
        yield rows[0][0], last
        after = last


def _refer(one: Staged, name: str, account_id: str) -> None:
    table = one.definition.table
    source = tables.plain(table, one.name)
    query = sa.select(source.c.id, source.c[name]).where(source.c[name].is_not(None))
    query, after = query.order_by(source.c.id).limit(REFERENCES_AT_ONCE), ""
    while rows := db.connection().execute(query.where(source.c.id > after)).all():
        columns: list[sa.ColumnClause[Any]] = [sa.column("_id", sa.Text), sa.column("_to", sa.Text)]
        given = sa.values(*columns).data([tuple(row) for row in rows]).cte("_given")
        same = (table.c.account_id == account_id, table.c.id == given.c["_id"])
        update = sa.update(table).where(*same).values({name: given.c["_to"]})
        db.connection().execute(update)
        after = rows[-1][0]
