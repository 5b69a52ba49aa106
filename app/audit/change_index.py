"""Checks that the change index matches the log."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from app import db
from app.audit.entries import CHANGES, LOG

COPIED_COLUMNS = ("operation", "table_name", "record_id", "user_id", "occurred_at")


def fault(account_id: str, last_id: int, count: int) -> int | None:
    """The first entry at which a chain's change index is wrong; None if it is right."""
    wrong, indexed, newest = _inspect(account_id)
    if newest != last_id:  # entries were appended meanwhile
        wrong, indexed, _ = _inspect(account_id, CHANGES.c.first_id <= last_id)
    if wrong is None and indexed == count:
        return None
    return int(last_id if wrong is None else wrong)


def _inspect(account_id: str, *conditions: sa.ColumnElement[bool]) -> tuple[int | None, int, int]:
    """The first wrong change, the number of indexed entries, and the newest entry id."""
    changes = CHANGES.c
    matches = [changes[name] == LOG.c[name] for name in COPIED_COLUMNS]
    in_change = (
        LOG.c.account_id == changes.account_id,
        LOG.c.id.between(changes.first_id, changes.last_id),
    )
    match_count = sa.func.sum(
        sa.case((sa.and_(*matches), 1), else_=-1)
    )  # a mismatch counts negative
    matching = (
        sa.select(match_count)
        .select_from(LOG)
        .where(*in_change)
        .correlate(CHANGES)
        .scalar_subquery()
    )
    before = sa.func.lag(changes.last_id).over(order_by=changes.first_id)
    is_wrong = sa.or_(sa.func.coalesce(matching, 0) != changes.entries, changes.first_id <= before)
    checked = (
        sa.select(changes.first_id, changes.entries, is_wrong.label("wrong"))
        .where(changes.account_id == account_id, *conditions)
        .subquery()
    )
    newest = sa.select(sa.func.max(LOG.c.id)).where(LOG.c.account_id == account_id)
    query = sa.select(
        sa.func.min(sa.case((checked.c.wrong, checked.c.first_id))),
        sa.func.sum(checked.c.entries),
        newest.scalar_subquery(),
    )
    wrong, entries, last = db.connection().execute(query).one()
    return wrong, int(entries or 0), last or 0


def accounts() -> Iterator[str]:
    """The accounts with entries or changes, found by index skip scans."""
    for table in (LOG, CHANGES):
        last = ""
        while True:
            next_id = sa.select(sa.func.min(table.c.account_id)).where(table.c.account_id > last)
            account_id = db.connection().scalar(next_id)
            if account_id is None:
                break
            yield (last := account_id)
