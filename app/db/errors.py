"""Maps database errors to constraint violations, outages and timeouts."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import ColumnCollectionConstraint

from app.db import Base
from app.errors import Conflict


@dataclass(frozen=True)
class Violation:
    """The kind of an IntegrityError, and its table and columns where known."""

    kind: str  # "unique", "foreign_key", "not_null" or "other"
    table: str
    columns: tuple[str, ...]


# No such table, no such column.
OUT_OF_DATE = ("42P01", "42703")
CANCELED = "57014"
DATA_EXCEPTION = "22"  # the class of codes
# A server-side statement would now return other types; the code also covers other refusals.
NOT_SUPPORTED, PLAN_OUT_OF_DATE = "0A000", "cached plan must not change result type"
QUOTED = re.compile(r'"(\w+)"')
PLAN_CHECK = "RevalidateCachedQuery"
POSTGRES_KINDS = {"23505": "unique", "23503": "foreign_key", "23502": "not_null"}
SQLITE_KINDS = {
    "SQLITE_CONSTRAINT_UNIQUE": "unique",
    "SQLITE_CONSTRAINT_PRIMARYKEY": "unique",
    "SQLITE_CONSTRAINT_FOREIGNKEY": "foreign_key",
    "SQLITE_CONSTRAINT_NOTNULL": "not_null",
}


def violation_of(error: IntegrityError) -> Violation:
    """Classify an integrity error; nothing else looks inside one."""
    original: Any = error.orig
    if isinstance(original, sqlite3.Error):
        kind = SQLITE_KINDS.get(original.sqlite_errorname, "other")
        # SQLite names no constraint, but ends its message with "table.column, table.column".
        names = str(original).rpartition(": ")[2].split(", ") if kind == "unique" else []
        tables = {name.partition(".")[0] for name in names}
        return Violation(kind, "".join(tables), tuple(name.partition(".")[2] for name in names))
    kind = POSTGRES_KINDS.get(original.pgcode, "other")
    table, name = original.diag.table_name or "", original.diag.constraint_name or ""
    if table not in Base.metadata.tables:
        table, name = _of_shard(table, name, original.diag.message_primary or "")
    return Violation(kind, table, _columns_of(table, name))


def was_lock_conflict(error: DBAPIError) -> bool:
    """Whether a schema change failed by a lock timeout or a deadlock."""
    return getattr(error.orig, "pgcode", None) in ("55P03", "40P01")


def is_concurrent_change(error: DBAPIError) -> bool:
    """Whether a concurrent change caused the error: a lock conflict or a new constraint."""
    kind = violation_of(error).kind if isinstance(error, IntegrityError) else None
    return kind in ("not_null", "unique") or was_lock_conflict(error)


def is_stale_schema(error: DBAPIError) -> bool:
    """Whether a statement names a table or column that was dropped or altered."""
    code = getattr(error.orig, "pgcode", None)
    if code == NOT_SUPPORTED:
        # Messages are localized; the function in the server's source is not.
        original: Any = error.orig
        return original.diag.source_function == PLAN_CHECK or PLAN_OUT_OF_DATE in str(original)
    message = str(error.orig)
    missing = message.startswith(("no such table", "no such column"))
    return code in OUT_OF_DATE or missing or "has no column named" in message


def is_invalid_data(error: DBAPIError) -> bool:
    """Whether a stored value could not be read as the statement reads it, such as invalid JSON."""
    code = getattr(error.orig, "pgcode", None) or ""
    return code.startswith(DATA_EXCEPTION) or "malformed JSON" in str(error.orig)


def _of_shard(table: str, constraint: str, message: str) -> tuple[str, str]:
    """Return the table and constraint of a violation in a shard, whose number ends both names.

    Of a worker's errors Citus passes on the message alone, which quotes the constraint.
    """
    if not constraint:
        constraint = next(iter(QUOTED.findall(message)), "")
    name, _, number = constraint.rpartition("_")
    if not number.isdecimal():
        return table, constraint
    tables = Base.metadata.tables
    shard_of = table.removesuffix(f"_{number}")
    candidates = [shard_of] if table else tables
    return next((one for one in candidates if _columns_of(one, name)), shard_of), name


def _columns_of(table: str, constraint_name: str) -> tuple[str, ...]:
    tables = Base.metadata.tables
    if table not in tables:
        return ()
    parts: list[ColumnCollectionConstraint | sa.Index] = list(tables[table].indexes)
    parts += [
        item for item in tables[table].constraints if isinstance(item, ColumnCollectionConstraint)
    ]
    for constraint in parts:
        if constraint.name == constraint_name:
            return tuple(column.name for column in constraint.columns)
    return ()


@contextmanager
def conflict_on_unique(table: str, column: str, field: str, message: str) -> Iterator[None]:
    """Raise Conflict (409) naming `field` if a unique constraint that ends in `column` fails."""
    try:
        yield
    except IntegrityError as error:
        violation = violation_of(error)
        is_unique = violation.kind == "unique" and violation.table == table
        if is_unique and violation.columns[-1:] == (column,):
            details = [{"field": field, "message": message, "code": "not_unique"}]
            raise Conflict(message, field=field, details=details) from error
        raise


# A connection that broke while idle fails before SQLAlchemy can wrap the driver's error.
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


def passed_deadline(error: Exception) -> bool:
    """Whether a statement was cancelled at its deadline, or as its client has gone.

    A wait for a lock ends before. Operators cancel statements of PostgreSQL with the same code.
    """
    original = getattr(error, "orig", None) or error
    if getattr(original, "pgcode", None) == CANCELED:
        return bool(getattr(original, "passed_deadline", True))
    return bool(getattr(original, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT)


def error_summary(error: Exception) -> str:
    """Return the reason of an outage for logs, without stored values."""
    original = getattr(error, "orig", None) or error
    diagnostics = getattr(original, "diag", None)
    if diagnostics and diagnostics.message_primary:
        return f"{diagnostics.message_primary} ({diagnostics.sqlstate})"
    return str(original).partition("\n")[0]  # further lines may quote values
