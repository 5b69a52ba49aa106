"""What refers to records, and what their own references lead to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.collections.columns import TableColumns
from app.collections.definition import Definition
from app.records import store
from app.records.store import NO_PARAMETERS, Row, writes
from app.types import JSONMapping


def lock_referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> list[Row]:
    """The records whose fields refer to any of these ids, kept from other writers."""
    table = definition.table
    chosen = sa.select(*definition.selected).where(*_referring(definition, account_id, targets))
    # Always in the same order, lest two deletions wait for each other.
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return [dict(zip(definition.columns, row, strict=True)) for row in rows]


def is_referenced(
    definition: Definition,
    account_id: str,
    targets: Mapping[str, Sequence[str]],
    except_ids: Sequence[str],
) -> bool:
    """Whether any record but these refers to any of the targets."""
    found = sa.select(sa.literal(1)).where(*_referring(definition, account_id, targets))
    others = sa.not_(store.is_any_of(definition.table.c.id, except_ids))
    return db.connection().scalar(found.where(others).limit(1)) is not None


def clear_references(
    definition: Definition,
    account_id: str,
    record_ids: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    values: Row,
) -> list[Row]:
    """Set the references of these records to the targets to null; returns them as stored."""
    if not record_ids:
        return []
    table = definition.table
    emptied = {
        name: sa.case((store.is_any_of(table.c[name], ids), sa.null()), else_=table.c[name])
        for name, ids in targets.items()
    }
    change = sa.update(table).where(
        table.c.account_id == sa.bindparam("_account_id", account_id),
        store.is_any_of(table.c.id, record_ids),
    )
    cut = [{"account_id": account_id, "id": id} for id in record_ids]
    return writes.execute_update(definition, change.values({**emptied, **values}), cut)


def resolve(
    definition: Definition, rows: Sequence[Row], paths: Collection[tuple[str, ...]]
) -> list[Row]:
    """The records with what dotted names lead to beside their own fields, in one statement."""
    if not paths or not rows:
        return list(rows)
    table, named = definition.table, {".".join(path): path for path in paths}
    source = TableColumns(definition, table)
    columns = [source.column(path).label(name) for name, path in named.items()]
    chosen = sa.select(table.c.account_id, table.c.id, *columns).where(
        table.c.account_id.in_({row["account_id"] for row in rows}),
        table.c.id.in_([row["id"] for row in rows]),
    )
    led = {tuple(row[:2]): row[2:] for row in db.connection().execute(chosen)}
    return [
        {**row, **dict(zip(named, led[row["account_id"], row["id"]], strict=True))} for row in rows
    ]


def resolve_one(
    definition: Definition, row: Row, paths: Collection[tuple[str, ...]]
) -> JSONMapping:
    """What dotted names lead to from a record that is not stored."""
    if not paths:
        return NO_PARAMETERS
    columns = [definition.table.c[name] for name in {"account_id", *(path[0] for path in paths)}]
    given = sa.select(
        *(sa.cast(sa.literal(row[one.name], one.type), one.type).label(one.name) for one in columns)
    ).subquery()
    source = TableColumns(definition, given)
    found = db.connection().execute(sa.select(*(source.column(path) for path in paths))).one()
    return dict(zip(map(".".join, paths), found, strict=True))


def _referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> tuple[Any, ...]:
    table = definition.table
    hits = [store.is_any_of(table.c[name], ids) for name, ids in targets.items()]
    return (table.c.account_id == account_id, sa.or_(*hits))
