"""SQL functions."""

from __future__ import annotations

from datetime import datetime

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
