"""Whether lists, which find entries by their changes, tell each entry once, and as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit.entries import CHANGES, LOG

TOLD_TWICE = ("operation", "table_name", "record_id", "user_id", "occurred_at")


def fault(account_id: str, last_id: int, count: int) -> int | None:
    """From which entry on lists are wrong of a chain that ends there; None if they are right."""
    wrong, told, newest = _looked_at(account_id)
    if newest != last_id:  # more was written meanwhile
        wrong, told, _ = _looked_at(account_id, CHANGES.c.first_id <= last_id)
    if wrong is None and told == count:
        return None
    return int(last_id if wrong is None else wrong)


def _looked_at(account_id: str, *which: Any) -> tuple[int | None, int, int]:
    """The first change that is wrong, how many entries are told of, and the newest there is."""
    told = CHANGES.c
    same = [told[name] == LOG.c[name] for name in TOLD_TWICE]
    its = (LOG.c.account_id == told.account_id, LOG.c.id.between(told.first_id, told.last_id))
    fitting = sa.func.sum(sa.case((sa.and_(*same), 1), else_=-1))  # one that does not spoils it
    held = sa.select(fitting).select_from(LOG).where(*its).correlate(CHANGES).scalar_subquery()
    before = sa.func.lag(told.last_id).over(order_by=told.first_id)
    wrong_ones = sa.or_(sa.func.coalesce(held, 0) != told.entries, told.first_id <= before)
    spans = (
        sa.select(told.first_id, told.entries, wrong_ones.label("wrong"))
        .where(told.account_id == account_id, *which)
        .subquery()
    )
    newest = sa.select(sa.func.max(LOG.c.id)).where(LOG.c.account_id == account_id)
    found = sa.select(
        sa.func.min(sa.case((spans.c.wrong, spans.c.first_id))),
        sa.func.sum(spans.c.entries),
        newest.scalar_subquery(),
    )
    wrong, entries, last = db.connection().execute(found).one()
    return wrong, int(entries or 0), last or 0


def accounts() -> Iterator[str]:
    """The accounts of which lists tell, or the log: from one to the next by an index."""
    for table in (LOG, CHANGES):
        last = ""
        while True:
            above = sa.select(sa.func.min(table.c.account_id)).where(table.c.account_id > last)
            found = db.connection().scalar(above)
            if found is None:
                break
            yield (last := found)
