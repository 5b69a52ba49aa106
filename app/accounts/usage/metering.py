"""Counts mails, stores the levels of stocks as each day ends, folds and deletes old counts."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app import clock, db, events, jobs
from app.accounts.usage import levels
from app.accounts.usage.models import COUNTS, MAILS, NOTICES, STOCKS
from app.accounts.usage.service import LEVEL
from app.context import tenancy
from app.types import JSONMapping

log = structlog.get_logger()
BATCH = 500
FOLDED = "folded"
FOLDED_AFTER = timedelta(days=35)  # later than any journal is collected
REMOVE = "usage.remove_account"


@events.subscribe(events.MailSent)
def _count_mail(event: events.MailSent) -> None:
    """Count a mail for the account that it was sent for."""
    own = {"account_id": event.account_id, "meter": MAILS, "day": levels.current_day(), "slot": "0"}
    new = levels.insert(COUNTS).values(**own, amount=1)
    counted = new.on_conflict_do_update(
        index_elements=[*COUNTS.primary_key], set_={"amount": COUNTS.c.amount + 1}
    )
    try:
        with tenancy.in_account(event.account_id), db.transaction() as session:
            session.execute(counted)
    except SQLAlchemyError as error:  # or the mail would be sent again
        log.warning("a mail is not metered", reason=type(error).__name__)


@jobs.periodic(600, "usage.record_levels")
def record_levels(payload: JSONMapping) -> None:
    """Store the levels of stocks as today's, in place of an earlier look."""
    rows = [
        {
            "account_id": account_id,
            "meter": meter,
            "day": levels.current_day(),
            "slot": LEVEL,
            "amount": n,
        }
        for (account_id, meter), n in levels.all_current(None).items()
        if meter in STOCKS
    ]
    for first in range(0, len(rows), BATCH):
        new = levels.insert(COUNTS).values(rows[first : first + BATCH])
        stored = new.on_conflict_do_update(
            index_elements=[*COUNTS.primary_key], set_={"amount": new.excluded.amount}
        )
        with db.transaction() as session:
            session.execute(stored)


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
