"""The present usage of an account: of a flow today, of a stock in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import clock, db
from app.accounts.usage.models import COUNTS, FILE_BYTES, LIVE, RECORDS, ROW_BYTES
from app.db import engine

RECORD_COUNTS: Any = sa.table(
    "record_counts",
    *map(sa.column, ("account_id", "collection_id", "slot", "records", "bytes")),
)
TRASHED: Any = sa.table("trashed_records", *map(sa.column, ("account_id", "size")))
COLUMNS = {RECORDS: RECORD_COUNTS.c.records, ROW_BYTES: RECORD_COUNTS.c.bytes}


def insert(table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT of the database's dialect, which takes ON CONFLICT."""
    is_sqlite = engine.current_engine().dialect.name == "sqlite"
    return sqlite.insert(table) if is_sqlite else postgresql.insert(table)


def current_day() -> str:
    """Return today's date in UTC, as in the table."""
    return clock.now().date().isoformat()


def current(account_id: str, meter: str) -> int:
    """Return what an account uses of a meter now."""
    if meter in COLUMNS:
        of_account = RECORD_COUNTS.c.account_id == account_id
        level: Any = sa.func.coalesce(sa.func.sum(COLUMNS[meter]), 0)
        if meter == ROW_BYTES:
            in_trash = sa.select(sa.func.sum(TRASHED.c.size))
            in_trash = in_trash.where(TRASHED.c.account_id == account_id)
            level += sa.func.coalesce(in_trash.scalar_subquery(), 0)
        query = sa.select(level).where(of_account)
    else:
        day = LIVE if meter == FILE_BYTES else current_day()
        query = sa.select(sa.func.sum(COUNTS.c.amount)).where(
            COUNTS.c.account_id == account_id, COUNTS.c.meter == meter, COUNTS.c.day == day
        )
    return int(db.connection().scalar(query) or 0)


def all_current(account_id: str | None) -> Mapping[tuple[str, str], int]:
    """Return what an account (None: each account) uses now, by account and meter."""
    day = sa.case((COUNTS.c.meter == FILE_BYTES, LIVE), else_=current_day())
    counted = sa.select(COUNTS.c.account_id, COUNTS.c.meter, COUNTS.c.amount)
    counted = counted.where(COUNTS.c.day.in_((LIVE, current_day())), COUNTS.c.day == day)
    parts = [counted]
    for meter, column in COLUMNS.items():
        parts.append(sa.select(RECORD_COUNTS.c.account_id, sa.literal(meter), column))
    parts.append(sa.select(TRASHED.c.account_id, sa.literal(ROW_BYTES), TRASHED.c.size))
    if account_id is not None:
        parts = [part.where(part.selected_columns.account_id == account_id) for part in parts]
    rows = sa.union_all(*parts).subquery().c
    query = sa.select(rows.account_id, rows.meter, sa.func.sum(rows.amount))
    found = db.connection().execute(query.group_by(rows.account_id, rows.meter))
    return {(row[0], row[1]): int(row[2]) for row in found}
