"""Counts that stop at a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import sqlalchemy as sa

from app import db

Scalar = TypeVar("Scalar")
Where = Sequence[sa.ColumnElement[bool]]


def count_up_to(table: sa.FromClause | type[db.Base], where: Where, limit: int | None) -> int:
    """Count the rows; stops at `limit` + 1."""
    rows = sa.select(sa.literal(1).label("one")).select_from(table).where(*where)
    if limit is not None:
        rows = rows.limit(limit + 1)
    return db.connection().scalar(sa.select(sa.func.count()).select_from(rows.subquery())) or 0


def value_at_offset(
    column: sa.SQLColumnExpression[Scalar], where: Where, offset: int
) -> Scalar | None:
    """Return the value of `column` that has `offset` higher ones; None if there is none."""
    values = sa.select(column).where(*where).order_by(column.desc())
    return db.connection().scalar(values.offset(offset).limit(1))
