"""Where a log that was cut begins, as pages show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app import clock
from app.audit.chain import signing
from app.errors import NotFound
from app.portability.retention import policy as policies
from app.types import JSONMapping


@dataclass(frozen=True)
class LogStart:
    """The signed start of a log, and the rule that cuts it."""

    entry_id: int
    removed: int
    created_at: datetime
    is_signed: bool
    days: int | None
    """What the policy says now; None: the log is no longer cut."""


def shown(start: JSONMapping | None, account_id: str | None, rule: str) -> LogStart | None:
    """A start as pages show it; `rule` is the property of the policy that cuts this log."""
    if start is None or account_id is None:
        return None
    try:
        days = getattr(policies.of_account(account_id), rule)
    except NotFound:  # the log outlives the account
        days = None
    created_at, is_signed = clock.parse(start["created_at"]), signing.fault(start) is None
    return LogStart(start["entry_id"], start["removed"], created_at, is_signed, days)
