"""SQL functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from app.db.types import UtcDateTime


class database_now(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock, as leases must not depend on the clocks of worker machines."""

    type = UtcDateTime()
    inherit_cache = True
    name = "database_now"

    def __init__(self, plus_seconds: int = 0) -> None:
        super().__init__(sa.literal(plus_seconds))


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **options: object) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', {seconds} || ' seconds')"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: SQLCompiler, **options: object) -> str:
    seconds = compiler.process(element.clauses, **options)
    # Not clock_timestamp(): Citus refuses volatile functions in UPDATE.
    return f"(statement_timestamp() + {seconds} * interval '1 second')"


# Citus takes no function that reads the clock inside CASE or COALESCE (docs/adr/0053). LEAST, which
# it takes, skips nulls on PostgreSQL.


class now_unless_set(sa.sql.functions.FunctionElement[datetime]):
    """A past time, or the database's clock if it is null."""

    type = UtcDateTime()
    inherit_cache = True
    name = "now_unless_set"

    def __init__(self, past: sa.ColumnElement[Any]) -> None:
        super().__init__(past, database_now())


@compiles(now_unless_set, "sqlite")
def _sqlite_now_unless_set(
    element: now_unless_set, compiler: SQLCompiler, **options: object
) -> str:
    return compiler.process(sa.func.coalesce(*element.clauses), **options)


@compiles(now_unless_set, "postgresql")
def _postgres_now_unless_set(
    element: now_unless_set, compiler: SQLCompiler, **options: object
) -> str:
    return compiler.process(sa.func.least(*element.clauses), **options)


class now_if(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock where a condition holds, else another value."""

    type = UtcDateTime()
    inherit_cache = True
    name = "now_if"

    def __init__(
        self, condition: sa.ColumnElement[bool], otherwise: sa.ColumnElement[Any] | None = None
    ) -> None:
        super().__init__(condition, sa.null() if otherwise is None else otherwise)


@compiles(now_if, "sqlite")
def _sqlite_now_if(element: now_if, compiler: SQLCompiler, **options: object) -> str:
    condition, otherwise = _parts(element)
    return compiler.process(sa.case((condition, database_now()), else_=otherwise), **options)


@compiles(now_if, "postgresql")
def _postgres_now_if(element: now_if, compiler: SQLCompiler, **options: object) -> str:
    condition, otherwise = _parts(element)
    # The sum is null, and so skipped, unless the condition holds.
    interval = compiler.process(sa.case((condition, sa.literal_column("interval '0'"))), **options)
    now = f"({compiler.process(database_now(), **options)} + {interval})"
    if isinstance(otherwise, sa.sql.elements.Null):
        return now
    other = compiler.process(sa.case((condition.is_not(sa.true()), otherwise)), **options)
    return f"LEAST({now}, {other})"


def _parts(element: now_if) -> Sequence[Any]:
    return list(element.clauses)
