"""What a collection's table holds, seen and put back past the API."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import db

Rows = list[dict[str, Any]]


def rows(app: Flask, table: str = "col_posts") -> Rows:
    """Every row, as the database gives it."""
    with app.app_context(), db.transaction():
        found = db.connection().execute(sa.text(f'SELECT * FROM "{table}" ORDER BY id'))  # noqa: S608
        return [dict(row) for row in found.mappings()]


def put_back(app: Flask, kept: Rows, table: str = "col_posts") -> None:
    """Make the table hold these rows and no others."""
    target = sa.table(table, *map(sa.column, kept[0]))
    with app.app_context(), db.transaction():
        db.connection().execute(sa.delete(target))
        db.connection().execute(sa.insert(target), kept)
