"""Maps errors of the database to what they mean: a violated constraint, an outage, a timeout."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.db import Base
from app.errors import Conflict, Unavailable


@dataclass(frozen=True)
class Violation:
    """What an IntegrityError says: its kind, and table and columns where it tells them."""

    kind: str  # "unique", "foreign_key", "not_null" or "other"
    table: str
    columns: tuple[str, ...]


# No such table, no such column.
OUT_OF_DATE = ("42P01", "42703")
# What the server keeps would give other types now, told under the code of all that it cannot do.
NOT_SUPPORTED, PLAN_OUT_OF_DATE = "0A000", "cached plan must not change result type"
PLAN_CHECK = "RevalidateCachedQuery"
POSTGRES_KINDS = {"23505": "unique", "23503": "foreign_key", "23502": "not_null"}
SQLITE_KINDS = {
    "SQLITE_CONSTRAINT_UNIQUE": "unique",
    "SQLITE_CONSTRAINT_PRIMARYKEY": "unique",
    "SQLITE_CONSTRAINT_FOREIGNKEY": "foreign_key",
    "SQLITE_CONSTRAINT_NOTNULL": "not_null",
}


def violation_of(error: IntegrityError) -> Violation:
    """Translate an integrity error; the only place that looks inside one."""
    original: Any = error.orig
    if isinstance(original, sqlite3.Error):
        kind = SQLITE_KINDS.get(original.sqlite_errorname, "other")
        # SQLite names no constraint, but ends its message with "table.column, table.column".
        names = str(original).rpartition(": ")[2].split(", ") if kind == "unique" else []
        tables = {name.partition(".")[0] for name in names}
        return Violation(kind, "".join(tables), tuple(name.partition(".")[2] for name in names))
    kind = POSTGRES_KINDS.get(original.pgcode, "other")
    table, name = original.diag.table_name or "", original.diag.constraint_name
    return Violation(kind, table, _columns_of(table, name))


def gave_way(error: DBAPIError) -> bool:
    """Whether a change of the schema gave way to other work (lock timeout, deadlock)."""
    return getattr(error.orig, "pgcode", None) in ("55P03", "40P01")


def was_overtaken(error: DBAPIError) -> bool:
    """Whether others' work came in between: it gave way, or is against what holds by now."""
    kind = violation_of(error).kind if isinstance(error, IntegrityError) else None
    return kind in ("not_null", "unique") or gave_way(error)


def is_out_of_date(error: DBAPIError) -> bool:
    """Whether a statement was made for a table or column that is not there, or is another now."""
    code = getattr(error.orig, "pgcode", None)
    if code == NOT_SUPPORTED:
        # Servers also tell it in other languages: the place in their source is the same.
        told: Any = error.orig
        return told.diag.source_function == PLAN_CHECK or PLAN_OUT_OF_DATE in str(told)
    missing = str(error.orig).startswith(("no such table", "no such column"))
    return code in OUT_OF_DATE or missing


def _columns_of(table: str, constraint_name: str | None) -> tuple[str, ...]:
    known = Base.metadata.tables.get(table)
    if known is None:
        return ()
    parts: list[Any] = [*known.constraints, *known.indexes]
    for constraint in parts:
        if constraint.name == constraint_name:
            return tuple(column.name for column in constraint.columns)
    return ()


@contextmanager
def conflict_on(table: str, column: str, field: str, message: str) -> Iterator[None]:
    """Turn a clash with a unique constraint that ends in `column` into a 409 naming `field`."""
    try:
        yield
    except IntegrityError as error:
        broken = violation_of(error)
        if broken.kind == "unique" and broken.table == table and broken.columns[-1:] == (column,):
            details = [{"field": field, "message": message, "code": "not_unique"}]
            raise Conflict(message, field=field, details=details) from error
        raise


TOO_LONG = (
    "This took longer than one request may keep others from writing"
    " (SERVICE_SQLITE_TRANSACTION_SECONDS), and was undone. Send less at once."
)
# A connection that broke while idle fails before SQLAlchemy could wrap its driver's error.
UNAVAILABLE = (
    OperationalError,
    InterfaceError,
    DisconnectionError,
    PendingRollbackError,
    PoolTimeout,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    sqlite3.OperationalError,
)


def unavailable(error: Exception) -> Unavailable:
    """What tells a client that the database did not do it."""
    return Unavailable(TOO_LONG if is_too_long(error) else None)


def is_too_long(error: Exception) -> bool:
    """Whether SQLite refused a statement because its transaction had lasted for too long."""
    original = getattr(error, "orig", None) or error
    return getattr(original, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT


def reason(error: Exception) -> str:
    """Why a database cannot be used, without anything that it keeps."""
    original = getattr(error, "orig", None) or error
    told = getattr(original, "diag", None)
    if told and told.message_primary:
        return f"{told.message_primary} ({told.sqlstate})"
    return str(original).partition("\n")[0]  # what follows may quote what was written
