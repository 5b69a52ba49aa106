"""Counts that stop at a limit, and daily counts of the newest rows.

An index finds the newest rows, as ids are ordered by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from app import db
from app.ids import first_id

Scalar = TypeVar("Scalar")
Where = Sequence[sa.ColumnElement[bool]]
SELECTS_PER_UNION = 100  # collections or accounts per statement
Row = tuple[str, str, str, int]  # day, kind, source, count


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


def select_newest_by_day(
    table: Any, kind: Any, since: datetime, limit: int | None, account_id: str | None
) -> Any:
    """Select the day, kind and account of the newest rows of an account (None: of all)."""
    query = sa.select(day(table.created_at), kind.label("kind"), table.account_id.label("source"))
    recent = query.where(table.id >= first_id(since)).order_by(table.id.desc()).limit(limit)
    return recent if account_id is None else recent.where(table.account_id == account_id)


def day(moment: object) -> Any:
    """The day of a moment in UTC, in SQL."""
    if db.connection().dialect.name == "sqlite":
        return sa.func.substr(moment, 1, 10, type_=sa.Text()).label("day")
    return sa.func.to_char(sa.func.timezone("UTC", moment), "YYYY-MM-DD").label("day")


def count_by_day(queries: Sequence[Any]) -> Sequence[Row]:
    """Count what the queries select, by day, kind and source."""
    result: list[Row] = []
    for first in range(0, len(queries), SELECTS_PER_UNION):
        batch = (
            sa.select(query.subquery()) for query in queries[first : first + SELECTS_PER_UNION]
        )
        rows = sa.union_all(*batch).subquery().c
        keys = (rows.day, rows.kind, rows.source)
        counts = sa.select(*keys, sa.func.count()).group_by(*keys)
        result += [(*row,) for row in db.connection().execute(counts)]
    return result
