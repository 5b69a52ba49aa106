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
    return db.connection().scalar(_count(table, where, limit)) or 0


def count_each_up_to(
    table: sa.FromClause | type[db.Base], conditions: Sequence[Where], limit: int | None
) -> Sequence[int]:
    """Count the rows under each of several conditions, in one statement."""
    return count_all_up_to([(table, where) for where in conditions], limit)


def count_all_up_to(
    sources: Sequence[tuple[sa.FromClause | type[db.Base], Where]], limit: int | None
) -> Sequence[int]:
    """Count the rows of each of several tables under its condition, in one statement."""
    if not sources:
        return []
    counts = (_count(*source, limit).scalar_subquery() for source in sources)
    return list(db.connection().execute(sa.select(*counts)).one())


def _count(table: sa.FromClause | type[db.Base], where: Where, limit: int | None) -> sa.Select[int]:
    rows = sa.select(sa.literal(1).label("one")).select_from(table).where(*where)
    if limit is not None:
        rows = rows.limit(limit + 1)
    return sa.select(sa.func.count()).select_from(rows.subquery())


def value_at_offset(
    column: sa.SQLColumnExpression[Scalar], where: Where, offset: int
) -> Scalar | None:
    """Return the value of `column` that has `offset` higher ones; None if there is none."""
    values = sa.select(column).where(*where).order_by(column.desc())
    return db.connection().scalar(values.offset(offset).limit(1))
