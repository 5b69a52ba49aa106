"""Folds counts of past days, and deletes notices of past months and counts of closed accounts."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, db, events, jobs
from app.accounts.usage import levels
from app.accounts.usage.models import COUNTS, NOTICES
from app.types import JSONMapping

FOLDED = "folded"
FOLDED_AFTER = timedelta(days=35)  # later than any journal is collected
REMOVE = "usage.remove_account"


@jobs.periodic(24 * 3600, "usage.fold")
def fold(payload: JSONMapping) -> None:
    """Add up the parts of past days, and forget notices of past months."""
    until = (clock.now() - FOLDED_AFTER).date().isoformat()
    old = (COUNTS.c.day < until, COUNTS.c.slot != FOLDED)
    key = (COUNTS.c.account_id, COUNTS.c.meter, COUNTS.c.day)
    query = sa.select(*key, sa.literal(FOLDED), sa.func.sum(COUNTS.c.amount)).where(*old)
    new = levels.insert(COUNTS).from_select([*COUNTS.c.keys()], query.group_by(*key))
    folded = new.on_conflict_do_update(
        index_elements=[*COUNTS.primary_key],
        set_={"amount": COUNTS.c.amount + new.excluded.amount},
    )
    with db.transaction() as session:
        session.execute(folded)
        session.execute(sa.delete(COUNTS).where(*old))
        session.execute(sa.delete(NOTICES).where(NOTICES.c.period < until[: len("2026-11")]))


@events.subscribe(events.AccountClosed)
def _remove_later(event: events.AccountClosed) -> None:
    # Once more when all is over that was under way as the account was closed.
    for delay in (0, jobs.IN_FLIGHT_SECONDS):
        jobs.enqueue(REMOVE, {}, account_id=event.account_id, after=delay)


@jobs.job(REMOVE)
def remove_account(payload: JSONMapping) -> None:
    """Delete the counts of a closed account."""
    for table in (COUNTS, NOTICES):
        with db.transaction() as session:
            session.execute(sa.delete(table).where(table.c.account_id == payload["account_id"]))
