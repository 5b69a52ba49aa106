"""Counting rows no further than somebody wants to know."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app import db


def count(table: Any, where: Any, most: int | None) -> int:
    """How many rows there are; where there are more than `most`, one beyond it."""
    counted = sa.select(sa.literal(1).label("one")).select_from(table).where(*where)
    if most is not None:
        counted = counted.limit(most + 1)
    return db.connection().scalar(sa.select(sa.func.count()).select_from(counted.subquery())) or 0


def place(column: Any, where: Any, newer: int) -> Any:
    """The value of `column` in the row that has so many higher ones; None where none has."""
    found = sa.select(column).where(*where).order_by(column.desc())
    return db.connection().scalar(found.offset(newer).limit(1))
