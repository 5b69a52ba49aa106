"""Counts mails, and stores the levels of stocks as each day ends."""

from __future__ import annotations

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app import db, events, jobs
from app.accounts.usage import levels
from app.accounts.usage.meters import MAILS, STOCKS
from app.accounts.usage.models import COUNTS
from app.accounts.usage.service import LEVEL
from app.context import tenancy
from app.types import JSONMapping

log = structlog.get_logger()
BATCH = 500


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
