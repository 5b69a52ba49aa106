"""The database's clock, in statements."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from app.db.types import Moment


class database_now(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock: leases must not depend on the clocks of worker machines."""

    type = Moment()
    inherit_cache = True
    name = "database_now"

    def __init__(self, plus_seconds: int = 0) -> None:
        super().__init__(sa.literal(plus_seconds))


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', {seconds} || ' seconds')"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    # Not clock_timestamp(): a volatile function has no place in an UPDATE of a distributed table.
    return f"(statement_timestamp() + {seconds} * interval '1 second')"
