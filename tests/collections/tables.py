"""What the database itself says of a collection's table."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import db
from app.collections import definitions
from app.collections.models import Collection, Revision
from app.context import tenancy


def inspected(table: str) -> Any:
    """An inspector that knows the table as it is now."""
    connection = db.connection()
    # SQLite's pragmas answer from what a pooled connection remembers, until a statement looks.
    connection.exec_driver_sql(f'SELECT 1 FROM "{table}" LIMIT 1')  # noqa: S608 - a constant
    return sa.inspect(connection)


def agrees(table: sa.Table) -> list[str]:
    """Where the database's table differs from the one that its definition says."""
    inspector = inspected(table.name)
    there = {column["name"]: column for column in inspector.get_columns(table.name)}
    found = [f"columns {sorted(there)}"] if set(there) != set(table.c.keys()) else []
    for column in table.columns:
        if column.name in there and bool(there[column.name]["nullable"]) != bool(column.nullable):
            found.append(f"null in {column.name}")
    indexes = {(i["name"], bool(i["unique"])) for i in inspector.get_indexes(table.name)}
    if indexes != {(str(i.name), bool(i.unique)) for i in table.indexes}:
        found.append(f"indexes {indexes}")
    keys = {tuple(key["constrained_columns"]) for key in inspector.get_foreign_keys(table.name)}
    if keys != {tuple(key.column_keys) for key in table.foreign_key_constraints}:
        found.append(f"references {keys}")
    if db.db.engine.dialect.name == "postgresql":
        preset = {name for name, column in there.items() if column["default"]}
        if preset != {c.name for c in table.columns if c.info.get("default") is not None}:
            found.append(f"defaults {preset}")
    return found


def wipe(app: Flask) -> None:
    """Forget every collection."""
    with app.app_context(), tenancy.as_owner(), db.transaction(changes_schema=True) as session:
        for one in definitions.get_all():
            cascade = "" if db.db.engine.dialect.name == "sqlite" else " CASCADE"
            session.execute(sa.text(f'DROP TABLE "{one.table_name}"{cascade}'))
        session.execute(sa.delete(Collection))
        session.execute(sa.delete(Revision))
