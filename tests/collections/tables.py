"""What the database itself says of a collection's table."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app import db


def inspected(table: str) -> Any:
    """An inspector that knows the table as it is now."""
    connection = db.connection()
    # SQLite's pragmas answer from what a pooled connection remembers, until a statement looks.
    connection.exec_driver_sql(f'SELECT 1 FROM "{table}" LIMIT 1')  # noqa: S608 - a constant
    return sa.inspect(connection)
