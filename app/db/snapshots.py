"""Long reads of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from app.db import engine

BEGIN = {
    "sqlite": "BEGIN",
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
}


@contextmanager
def snapshot() -> Iterator[sa.Connection]:
    """A connection of its own that sees the database as it is at its first statement.

    Blocks no writer. The tenant scope is that of the block's beginning.
    """
    with engine.current_engine().connect() as connection:
        connection.exec_driver_sql(BEGIN[connection.dialect.name])
        try:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield connection
        finally:
            connection.exec_driver_sql("ROLLBACK")
