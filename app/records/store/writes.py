"""Statements that lock, insert, update and delete records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.collections.definition import Definition
from app.db import engine, sqlite_driver, versioned_cache
from app.db.prepared import PreparedStatement
from app.db.versioned_cache import VersionChecks
from app.records import store
from app.records.store import ACCOUNT, Condition, Row, reads
from app.types import JSONObject

_PREFIX = "_value_"
_MOST_PARAMETERS = 30_000  # SQLite takes 32,766


def lock(
    definition: Definition, scoped: Sequence[Condition], record_ids: Sequence[str]
) -> dict[str, Row]:
    """Lock records in scope until the transaction ends; returns them by id."""
    table = definition.table
    where = (*scoped, store.is_any_of(table.c.id, record_ids))
    reads.check_room(definition, where)
    chosen = sa.select(*definition.selected).where(*where)
    # Always in the same order, to avoid deadlocks.
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return {row["id"]: row for row in store.rows(definition, rows)}


def lock_one(
    definition: Definition, account_id: str | None, record_id: str, checked: VersionChecks
) -> Row | None:
    """Lock one record of an account (None: of any), verifying `checked` if it exists.

    Raises Stale.
    """
    statement = definition.memo.get(_locked, definition, account_id is None, checked.tables)
    bound = {"_account": account_id, "_id": record_id}
    return reads.one_row(definition, statement, bound, checked)


def _locked(definition: Definition, anywhere: bool, tables: tuple[str, ...]) -> PreparedStatement:
    found = reads.of_id(definition, False, anywhere, None, tables)
    return PreparedStatement(found.with_for_update(), keyed=True)


def lock_by_value(
    definition: Definition, account_id: str, name: str, values: Sequence[object]
) -> list[Row]:
    """Lock the records of an account with one of these values in a field."""
    table = definition.table
    where = (table.c.account_id == account_id, table.c[name].in_(values))
    reads.check_room(definition, where)
    chosen = sa.select(*definition.selected).where(*where)
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return store.rows(definition, rows)


def insert(definition: Definition, rows: Sequence[Row]) -> list[Row]:
    """Insert records that all name the same fields; returns the stored rows."""
    if _reads_apart(definition):
        write(definition, (), rows)
        return _again(definition, rows)
    given = list(map(_given, rows))
    if len(given) == 1:
        statement = definition.memo.get(_inserted, definition, tuple(rows[0]))
        return store.rows(definition, statement.all(given[0]))
    many = _new(definition, rows[0]).returning(*definition.selected)
    return _in_order(definition, rows, db.connection().execute(many, given))


def _inserted(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    change = _new(definition, names)
    return PreparedStatement(change.returning(*definition.selected), keyed=True)


def _new(definition: Definition, names: Iterable[str]) -> sa.Insert:
    return sa.insert(definition.table).values(_parameters(definition.table, names))


def write(definition: Definition, before: Sequence[Row], values: Sequence[Row]) -> None:
    """Insert records, or update the one in `before`, without reading them back."""
    given, names = list(map(_given, values)), tuple(values[0])
    if before:
        definition.memo.get(_put, definition, names).run(given[0] | _place_of(before[0]))
    elif len(given) == 1:
        definition.memo.get(_put_new, definition, names).run(given[0])
    else:
        db.connection().execute(_new(definition, names), given)


def _put_new(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_new(definition, names), keyed=True)


def _put(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_change_of_one(definition, names), keyed=True)


def predict(
    definition: Definition, before: Sequence[Row], values: Sequence[Row]
) -> list[Row] | None:
    """The rows that `write` will store; None if the database computes or may refuse a value."""
    fields = [definition.columns[name] for name in values[0]]
    if definition.computed or any(field.unique or field.collection for field in fields):
        return None
    old = before[0] if before else dict.fromkeys(definition.columns)
    differing = [field for field in fields if field.reads_differently]
    return [
        {**old, **new, **{field.name: field.read_back(new[field.name]) for field in differing}}
        for new in values
    ]


def update(definition: Definition, records: Sequence[Row], values: Sequence[Row]) -> list[Row]:
    """Update records of one account; returns the stored rows."""
    table = definition.table
    if len(records) == 1:
        if _reads_apart(definition):
            write(definition, records, values)
            return _again(definition, records)
        statement = definition.memo.get(_updated, definition, tuple(values[0]))
        given = _given(values[0]) | _place_of(records[0])
        return store.rows(definition, statement.all(given))
    names = [c.name for c in table.c if any(c.name in row for row in values)]
    width = max(1, _MOST_PARAMETERS // (len(names) + 1))
    if db.connection().dialect.name == "sqlite":
        width = min(width, sqlite_driver.ROWS)
    stored: list[Row] = []
    for first in range(0, len(records), width):
        some = slice(first, first + width)
        stored += _update_some(definition, records[some], values[some], names)
    return stored


def _updated(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    change = _change_of_one(definition, names)
    return PreparedStatement(change.returning(*definition.selected), keyed=True)


def _change_of_one(definition: Definition, names: Iterable[str]) -> sa.Update:
    table = definition.table
    mine = (table.c.account_id == ACCOUNT, table.c.id == sa.bindparam("_id"))
    return sa.update(table).where(*mine).values(_parameters(table, names))


def _update_some(
    definition: Definition, records: Sequence[Row], values: Sequence[Row], names: Sequence[str]
) -> list[Row]:
    table = definition.table
    # The rows are locked, so columns that are not set keep the values read.
    rows = [
        (old["id"], *(new.get(name, old[name]) for name in names))
        for old, new in zip(records, values, strict=True)
    ]
    columns = [sa.column(f"_{name}", table.c[name].type) for name in ("id", *names)]
    given = sa.values(*columns).data(rows).cte("_given")
    mine = (table.c.account_id == sa.bindparam("_account_id", records[0]["account_id"]),)
    change = sa.update(table).where(*mine, table.c.id == given.c["_id"])
    # Values in a row of their own have no type on PostgreSQL, where a column is null throughout.
    cast = db.connection().dialect.name == "postgresql"
    new = {
        name: sa.cast(column, column.type) if cast else column
        for name, column in ((name, given.c[f"_{name}"]) for name in names)
    }
    return execute_update(definition, change.values(new), records)


def execute_update(definition: Definition, change: sa.Update, records: Sequence[Row]) -> list[Row]:
    """Execute an UPDATE of records of one account; returns the stored rows."""
    if _reads_apart(definition):
        db.connection().execute(change)
        return _again(definition, records)
    done = db.connection().execute(change.returning(*definition.selected))
    return _in_order(definition, records, done)


def _reads_apart(definition: Definition) -> bool:
    # In RETURNING, SQLite compares numbers with a fraction as texts: 10.5 would be less than 5.
    return bool(definition.computed) and engine.current_engine().dialect.name == "sqlite"


def _again(definition: Definition, records: Sequence[Row]) -> list[Row]:
    if len(records) == 1:
        place = (records[0]["account_id"], records[0]["id"])
        found = reads.read_one(definition, *place, versioned_cache.NO_CHECKS)
        return [] if found is None else [found]
    table, ids = definition.table, [one["id"] for one in records]
    accounts = {one["account_id"] for one in records}
    these = (table.c.account_id.in_(accounts), store.is_any_of(table.c.id, ids))
    chosen = sa.select(*definition.selected).where(*these)
    return _in_order(definition, records, db.connection().execute(chosen))


def delete_together(account_id: str, chosen: Sequence[tuple[Definition, Sequence[str]]]) -> None:
    """Delete records of several collections that may refer to each other, even in cycles."""
    deletions = [
        sa.delete(one.table).where(
            one.table.c.account_id == account_id, store.is_any_of(one.table.c.id, ids)
        )
        for one, ids in chosen
    ]
    execute_deletes(deletions)


def execute_deletes(deletions: Sequence[sa.Delete]) -> None:
    """Execute DELETEs; foreign keys are checked after the last one."""
    connection = db.connection()
    if len(deletions) == 1:
        connection.execute(deletions[0])
    elif connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        for deletion in deletions:
            connection.execute(deletion)
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = OFF")
    else:
        parts = [deletion.cte(f"deletion_{i}") for i, deletion in enumerate(deletions)]
        connection.execute(sa.select(sa.literal(1)).add_cte(*parts))


def _in_order(definition: Definition, records: Sequence[Row], found: Iterable[object]) -> list[Row]:
    by_id = {row["id"]: row for row in store.rows(definition, found)}
    return [by_id[record["id"]] for record in records]


def _place_of(record: Row) -> JSONObject:
    return {"_account": record["account_id"], "_id": record["id"]}


def _given(values: Row) -> JSONObject:
    return {_PREFIX + name: value for name, value in values.items()}


def _parameters(table: sa.Table, names: Iterable[str]) -> dict[str, sa.BindParameter[Any]]:
    # Left to itself the toolkit names parameters after columns: those of expressions are named
    # "param_1" and the like, and a field may have such a name.
    return {name: sa.bindparam(_PREFIX + name, type_=table.c[name].type) for name in names}
