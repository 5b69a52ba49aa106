"""Cutting a log: its oldest entries are removed, and a signed start takes their place.

Without the checkpoint key nobody can make a start, not even the owner of the database
(docs/adr/0049, 0052).
"""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile

import sqlalchemy as sa
import structlog

from app import clock, config, db
from app.audit.chain import signing, verify
from app.audit.chain.log import LOWEST, Log
from app.context import tenancy
from app.errors import Conflict

logger = structlog.get_logger()
PIECE = 500  # rows
NO_KEY = "Set SERVICE_AUDIT_CHECKPOINT_KEY to cut a log."


def count(log: Log, account_id: str, before: datetime) -> int:
    """The number of entries that `cut` would remove."""
    log.settle(account_id)
    rows, end = log.rows, log.end(account_id)
    newer = sa.select(sa.func.min(rows.c[log.first])).where(
        rows.c.account_id == account_id, rows.c.occurred_at >= before
    )
    first_newer = db.connection().scalar(newer)
    until = end if first_newer is None else min(end, first_newer)
    older = (rows.c.account_id == account_id, rows.c[log.last] < until)
    removed = sa.select(sa.func.coalesce(sa.func.sum(log.size), 0)).where(*older)
    return int(db.connection().scalar(removed) or 0)


def cut(log: Log, account_id: str, before: datetime) -> int:
    """Remove the entries up to the first one that is not before a moment, but never the newest.

    Returns how many. It commits in pieces, each with an entry of its own, so it can be interrupted
    and run again. Raises Conflict without a key, and where the chain is broken.
    """
    if not config.current().audit_checkpoint_key:
        raise Conflict(NO_KEY)
    before, removed = min(before, clock.now()), 0
    with tenancy.in_account(account_id):
        log.settle(account_id)
        # The entries about the pieces do not make room for more.
        end = log.end(account_id)
        while piece := _cut_piece(log, account_id, before, end):
            removed += piece
    return removed


def _cut_piece(log: Log, account_id: str, before: datetime, end: int) -> int:
    with db.transaction() as session:
        head = sa.select(log.heads.c[log.head_id]).where(log.heads.c.account_id == account_id)
        session.execute(head.with_for_update())
        start = signing.start_of(log, account_id)
        rows = log.read(account_id, after=LOWEST, until=end - 1, limit=PIECE)
        oldest = list(takewhile(lambda row: row["occurred_at"] < before, rows))
        if not oldest:
            return 0
        chain = verify.chain_of(log, account_id, start)
        for row in oldest:
            verify.take_row(log, chain, row)
        report, passed = chain.report, min(chain.checkpoints, default=chain.last_id + 1)
        if report.valid and passed <= chain.last_id:
            report.fail(passed, "a checkpoint refers to this entry, which is missing")
        if not report.valid:
            id, reason = report.first_broken_id, report.reason
            logger.error("audit chain broken", account=report.account_id, entry=id, reason=reason)
            raise Conflict(f"The audit chain is broken at entry {id}: {reason}. It was not cut.")
        count = report.checked
        log.record_cut(account_id, chain.last_id, count)
        removed = count + (start["removed"] if start else 0)
        end_of_cut = (report.account_id, chain.last_id, chain.last_checksum)
        signed = signing.sign_chain(*end_of_cut, removed)
        if signed is None:
            raise Conflict(NO_KEY)
        logger.info("audit log cut", **signed)
        values = {**signing.start_row(signed), "account_id": account_id}
        stored = sa.update(log.starts).where(log.starts.c.account_id == account_id)
        if not db.connection().execute(stored.values(values)).rowcount:
            db.connection().execute(sa.insert(log.starts).values(values))
        own = (log.rows.c.account_id == account_id, log.rows.c[log.first] <= chain.last_id)
        session.execute(sa.delete(log.rows).where(*own))
    return count
