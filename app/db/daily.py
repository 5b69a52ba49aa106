"""Daily counts of the newest rows, which an index finds: ids are ordered by time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import db
from app.ids import first_id

SELECTS_PER_UNION = 100  # collections or accounts per statement
Row = tuple[str, str, str, int]  # day, kind, source, count


def select_newest(
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


def count(queries: Sequence[Any]) -> Sequence[Row]:
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
