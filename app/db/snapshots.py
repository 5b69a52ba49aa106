"""Long reads of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from app.db import engine
from app.db.postgres_driver import Driver


@contextmanager
def snapshot() -> Iterator[sa.Connection]:
    """A connection of its own that sees the database as it is at its first statement.

    Blocks no writer. The tenant scope is that of the block's beginning.
    """
    with engine.current_engine().connect() as connection:
        driver = connection.connection.driver_connection
        if isinstance(driver, Driver):
            # Before the tenant scope, which Citus sets by a statement of its own.
            driver.begin_snapshot()
        else:
            connection.exec_driver_sql("BEGIN")
        try:
            if isinstance(driver, Driver):
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield connection
        finally:
            connection.exec_driver_sql("ROLLBACK")
