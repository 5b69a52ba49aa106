"""Failed sign-ins that are not recorded one by one, so that guesses cannot fill a log.

The first one beyond the limit enqueues a job; after an hour it records how many there were.
"""

from __future__ import annotations

from app import clock, db, jobs
from app.audit.security_log.models import EventKind
from app.audit.security_log.recording import Event, record
from app.context import actor
from app.types import JSONMapping
from app.web import rate_limits
from app.web.rate_limits import Limit

WINDOW_SECONDS = 3600
# Counts longer than the window, so that a late job still finds the number.
COUNT = Limit("security-log-suppressed", 1, 7 * 86_400)


def count(account_id: str) -> None:
    """Count a failure that is not recorded."""
    if rate_limits.increment(COUNT.of(account_id), 1) == 1:
        payload = {"since": clock.iso(clock.now())}
        with db.transaction():
            after = WINDOW_SECONDS
            jobs.enqueue("security.record_suppressed", payload, account_id=account_id, after=after)


@jobs.job("security.record_suppressed")
def record_count(payload: JSONMapping) -> None:
    """Record how many failures were not recorded, and count anew."""
    account_id = payload["account_id"]
    number = rate_limits.take(COUNT.of(account_id))
    if number:
        details = {"count": number, "since": payload["since"]}
        record(
            Event(
                account_id, EventKind.SIGN_INS_SUPPRESSED, "users", details=details, by=actor.SYSTEM
            )
        )
