"""Statements that lock, insert, update and delete records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.collections import search_words
from app.collections.definitions import Definition
from app.context import tenancy
from app.db import engine, filters, sqlite_driver, versioned_cache
from app.db.prepared import PreparedStatement
from app.db.versioned_cache import VersionChecks
from app.records import store
from app.records.store import ACCOUNT, Condition, Row, reads
from app.types import JSONObject

_PREFIX = "_value_"
_MAX_PARAMETERS = 30_000  # SQLite takes 32,766


def lock(
    definition: Definition, scoped: Sequence[Condition], record_ids: Sequence[str]
) -> dict[str, Row]:
    """Lock records in scope until the transaction ends; returns them by id."""
    table = definition.table
    where = (*scoped, filters.is_any_of(table.c.id, record_ids))
    reads.check_room(definition, where)
    query = sa.select(*definition.selected).where(*where)
    # Always in the same order, to avoid deadlocks.
    rows = db.connection().execute(query.order_by(table.c.id).with_for_update())
    return {row["id"]: row for row in store.rows(definition, rows)}


def lock_one(
    definition: Definition, account_id: str | None, record_id: str, checked: VersionChecks
) -> Row | None:
    """Lock one record of an account (None: of any), verifying `checked` if it exists.

    Raises Stale.
    """
    checked = checked.within(account_id)
    statement = definition.memo.get(_prepared_lock, definition, account_id is None, checked.tables)
    bound_values = {"_account": account_id, "_id": record_id}
    return reads.one_row(definition, statement, bound_values, checked)


def _prepared_lock(
    definition: Definition, anywhere: bool, tables: tuple[str, ...]
) -> PreparedStatement:
    query = reads.select_by_id(definition, False, anywhere, None, tables)
    return PreparedStatement(query.with_for_update(), keyed=True)


def lock_by_value(
    definition: Definition, account_id: str, name: str, values: Sequence[object]
) -> list[Row]:
    """Lock the records of an account with one of these values in a field."""
    table = definition.table
    where = (table.c.account_id == account_id, table.c[name].in_(values))
    with tenancy.through_views():  # which are not to be locked
        ids = db.connection().scalars(sa.select(table.c.id).where(*where)).all()
    return list(lock(definition, where, ids).values())


def insert(definition: Definition, rows: Sequence[Row]) -> list[Row]:
    """Insert records that all name the same fields; returns the stored rows."""
    if definition.searched:
        rows = search_words.added(definition, rows)
    if _needs_second_read(definition):
        write(definition, (), rows)
        return _read_again(definition, rows)
    parameters = list(map(_value_parameters, rows))
    if len(parameters) == 1:
        statement = definition.memo.get(_prepared_insert_returning, definition, tuple(rows[0]))
        return store.rows(definition, statement.all(parameters[0]))
    statement_returning = _insert_statement(definition, rows[0]).returning(*definition.selected)
    return _in_order(definition, rows, db.connection().execute(statement_returning, parameters))


def _prepared_insert_returning(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    change = _insert_statement(definition, names)
    return PreparedStatement(change.returning(*definition.selected), keyed=True)


def _insert_statement(definition: Definition, names: Iterable[str]) -> sa.Insert:
    return sa.insert(definition.table).values(_parameters(definition.table, names))


def write(definition: Definition, before: Sequence[Row], values: Sequence[Row]) -> None:
    """Insert records, or update the one in `before`, without reading them back."""
    parameters, names = list(map(_value_parameters, values)), tuple(values[0])
    if before:
        definition.memo.get(_prepared_update, definition, names).run(
            parameters[0] | _key_parameters(before[0])
        )
    elif len(parameters) == 1:
        definition.memo.get(_prepared_insert, definition, names).run(parameters[0])
    else:
        db.connection().execute(_insert_statement(definition, names), parameters)


def _prepared_insert(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_insert_statement(definition, names), keyed=True)


def _prepared_update(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_update_statement(definition, names), keyed=True)


def predict(
    definition: Definition, before: Sequence[Row], values: Sequence[Row]
) -> list[Row] | None:
    """The rows that `write` will store; None if the database computes or may refuse a value."""
    if definition.computed or not definition.unpredicted.isdisjoint(values[0]):
        return None
    fields = [definition.columns[name] for name in values[0]]
    previous = before[0] if before else dict.fromkeys(definition.columns)
    differing = [field for field in fields if field.reads_differently]
    return [
        {**previous, **new, **{field.name: field.read_back(new[field.name]) for field in differing}}
        for new in values
    ]


def update(definition: Definition, records: Sequence[Row], values: Sequence[Row]) -> list[Row]:
    """Update records of one account; returns the stored rows."""
    table = definition.table
    if definition.searched:
        values = search_words.added(definition, values, records)
    if len(records) == 1:
        if _needs_second_read(definition):
            write(definition, records, values)
            return _read_again(definition, records)
        statement = definition.memo.get(_prepared_update_returning, definition, tuple(values[0]))
        parameters = _value_parameters(values[0]) | _key_parameters(records[0])
        return store.rows(definition, statement.all(parameters))
    names = [c.name for c in table.c if any(c.name in row for row in values)]
    width = max(1, _MAX_PARAMETERS // (len(names) + 1))
    if db.connection().dialect.name == "sqlite":
        width = min(width, sqlite_driver.ROWS)
    stored: list[Row] = []
    for first in range(0, len(records), width):
        chunk = slice(first, first + width)
        stored += _update_many(definition, records[chunk], values[chunk], names)
    return stored


def _prepared_update_returning(definition: Definition, names: tuple[str, ...]) -> PreparedStatement:
    change = _update_statement(definition, names)
    return PreparedStatement(change.returning(*definition.selected), keyed=True)


def _update_statement(definition: Definition, names: Iterable[str]) -> sa.Update:
    table = definition.table
    same_record = (table.c.account_id == ACCOUNT, table.c.id == sa.bindparam("_id"))
    return sa.update(table).where(*same_record).values(_parameters(table, names))


def _update_many(
    definition: Definition, records: Sequence[Row], values: Sequence[Row], names: Sequence[str]
) -> list[Row]:
    table = definition.table
    # The rows are locked, so columns that are not set keep the values read.
    rows = [
        (old["id"], *(new_values[name] if name in new_values else old[name] for name in names))
        for old, new_values in zip(records, values, strict=True)
    ]
    columns = [sa.column(f"_{name}", table.c[name].type) for name in ("id", *names)]
    given_rows = sa.values(*columns).data(rows).cte("_given")
    same_account = (table.c.account_id == sa.bindparam("_account_id", records[0]["account_id"]),)
    statement = sa.update(table).where(*same_account, table.c.id == given_rows.c["_id"])
    # Values in a row of their own have no type on PostgreSQL, where a column is null throughout.
    cast = db.connection().dialect.name == "postgresql"
    new_values = {
        name: sa.cast(column, column.type) if cast else column
        for name, column in ((name, given_rows.c[f"_{name}"]) for name in names)
    }
    return execute_update(definition, statement.values(new_values), records)


def execute_update(
    definition: Definition, statement: sa.Update, records: Sequence[Row]
) -> list[Row]:
    """Execute an UPDATE of records of one account; returns the stored rows."""
    if _needs_second_read(definition):
        db.connection().execute(statement)
        return _read_again(definition, records)
    result = db.connection().execute(statement.returning(*definition.selected))
    return _in_order(definition, records, result)


def _needs_second_read(definition: Definition) -> bool:
    # In RETURNING, SQLite compares numbers with a fraction as texts: 10.5 would be less than 5.
    return bool(definition.computed) and engine.current_engine().dialect.name == "sqlite"


def _read_again(definition: Definition, records: Sequence[Row]) -> list[Row]:
    if len(records) == 1:
        key = (records[0]["account_id"], records[0]["id"])
        row = reads.read_one(definition, *key, versioned_cache.NO_CHECKS)
        return [] if row is None else [row]
    table, ids = definition.table, [record["id"] for record in records]
    accounts = {record["account_id"] for record in records}
    conditions = (table.c.account_id.in_(accounts), filters.is_any_of(table.c.id, ids))
    query = sa.select(*definition.selected).where(*conditions)
    return _in_order(definition, records, db.connection().execute(query))


def delete_together(account_id: str, targets: Sequence[tuple[Definition, Sequence[str]]]) -> None:
    """Delete records of several collections that may refer to each other, even in cycles."""
    deletions = [
        sa.delete(definition.table).where(
            definition.table.c.account_id == account_id,
            filters.is_any_of(definition.table.c.id, ids),
        )
        for definition, ids in targets
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


def _in_order(
    definition: Definition, records: Sequence[Row], result: Iterable[object]
) -> list[Row]:
    by_id = {row["id"]: row for row in store.rows(definition, result)}
    return [by_id[record["id"]] for record in records]


def _key_parameters(record: Row) -> JSONObject:
    return {"_account": record["account_id"], "_id": record["id"]}


def _value_parameters(values: Row) -> JSONObject:
    return {_PREFIX + name: value for name, value in values.items()}


def _parameters(table: sa.Table, names: Iterable[str]) -> dict[str, sa.BindParameter[Any]]:
    # Left to itself the toolkit names parameters after columns: those of expressions are named
    # "param_1" and the like, and a field may have such a name.
    return {name: sa.bindparam(_PREFIX + name, type_=table.c[name].type) for name in names}
