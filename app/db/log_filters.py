"""Filters that logs share whose ids begin with their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app.ids import first_id


def conditions(
    table: sa.FromClause, query: Mapping[str, Any], names: Sequence[str]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of a query: columns by name, and `from_date` until `to_date`."""
    for name in names:
        if query.get(name):
            yield table.c[name] == query[name]
    # Compared as ids, so that the primary key finds the rows.
    if query.get("from_date"):
        yield table.c.id >= first_id(query["from_date"])
    if query.get("to_date"):
        yield table.c.id < first_id(query["to_date"])
