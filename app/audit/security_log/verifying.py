"""Verifies the chains of all accounts, each once a day."""

from __future__ import annotations

import time
from datetime import timedelta

import sqlalchemy as sa
import structlog

from app import db, jobs
from app.audit import sealing, verifications
from app.audit.chain import verify
from app.audit.log import AUDIT
from app.audit.models import AuditHead
from app.audit.security_log.log import SECURITY
from app.types import JSONMapping

log = structlog.get_logger()
EVERY_SECONDS, RUN_SECONDS, BATCH = 600, 60, 100
DAY = timedelta(days=1)


@jobs.periodic(EVERY_SECONDS, "security.verify")
def verify_periodically(payload: JSONMapping) -> None:
    """Verify the logs of accounts that were not verified today; for a minute, or until one ends."""
    end = time.monotonic() + RUN_SECONDS
    sealing.seal_due()
    while due := _due():
        for account_id in due:
            if time.monotonic() >= end:
                return
            verify_account(account_id)


def verify_account(account_id: str) -> None:
    """Verify both logs of an account, and report what is broken to the operator's log."""
    for chained in (AUDIT, SECURITY):
        for report in verify.verify_all(chained, account_id)["chains"]:
            if not report["valid"]:
                about = {"entry": report["first_broken_id"], "reason": report["reason"]}
                log.error("audit chain broken", account=report["account_id"], **about)


def _due() -> list[str]:
    known = sa.select(AuditHead.account_id).where(AuditHead.last_id > 0)
    due = known.where(AuditHead.account_id.not_in(verifications.recent(DAY)))
    return list(db.connection().scalars(due.order_by(AuditHead.account_id).limit(BATCH)))
