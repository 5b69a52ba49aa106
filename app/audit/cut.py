"""Cutting the audit log: the oldest changes are removed, and a signed start takes their place.

Without the checkpoint key nobody can make a start, not even the owner of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import sqlalchemy as sa
import structlog

from app import clock, config, db
from app.audit import append, checkpoints, entries, verify
from app.audit.entries import CHANGES, HEADS, STARTS
from app.audit.models import AuditCheckpoint
from app.context import tenancy
from app.errors import Conflict
from app.types import JSONObject

log = structlog.get_logger()
PIECE = 500  # changes
NO_KEY = "Set SERVICE_AUDIT_CHECKPOINT_KEY to cut a log."
CHECKPOINTS = AuditCheckpoint.__table__
CutPiece = Callable[[str, datetime, int], int]
"""Cuts an account's log before a moment and an entry; returns the number of entries removed."""


def count(account_id: str, before: datetime) -> int:
    """The number of entries that `cut` would remove."""
    newer = sa.select(sa.func.min(CHANGES.c.first_id)).where(
        CHANGES.c.account_id == account_id, CHANGES.c.occurred_at >= before
    )
    newest = sa.select(sa.func.max(CHANGES.c.first_id)).where(CHANGES.c.account_id == account_id)
    end = sa.func.coalesce(newer.scalar_subquery(), newest.scalar_subquery())
    older = (CHANGES.c.account_id == account_id, CHANGES.c.first_id < end)
    return int(
        db.connection().scalar(
            sa.select(sa.func.coalesce(sa.func.sum(CHANGES.c.entries), 0)).where(*older)
        )
        or 0
    )


def cut(account_id: str, before: datetime) -> int:
    """Remove the entries up to the first one that is not before a moment, but never the newest.

    Returns how many. It commits in pieces, each with an audit entry, so it can be interrupted and
    run again. Raises Conflict without a key, and where the chain is broken.
    """
    newest = sa.select(HEADS.c.last_id).where(HEADS.c.account_id == account_id)
    return cut_in_pieces(
        account_id, before, lambda: db.connection().scalar(newest) or 0, _cut_piece
    )


def cut_in_pieces(
    account_id: str, before: datetime, end_of_log: Callable[[], int], cut_piece: CutPiece
) -> int:
    """Cut a log of an account until nothing before a moment is left. Raises Conflict."""
    if not config.current().audit_checkpoint_key:
        raise Conflict(NO_KEY)
    before, removed = min(before, clock.now()), 0
    with tenancy.in_account(account_id):
        # The entries about the pieces do not make room for more.
        end = end_of_log()
        while piece := cut_piece(account_id, before, end):
            removed += piece
    return removed


def _cut_piece(account_id: str, before: datetime, end: int) -> int:
    with db.transaction() as session:
        head = sa.select(HEADS.c.last_id).where(HEADS.c.account_id == account_id)
        session.execute(head.with_for_update())
        start = checkpoints.start_of(account_id)
        changes = _oldest(account_id, before, end)
        if not changes:
            return 0
        last = _verified(account_id, start, changes)
        count = sum(change["entries"] for change in changes)
        removed = count + (start["removed"] if start else 0)
        store_start(STARTS, account_id, last, removed)
        _delete(account_id, last.last_id)
        value, about = ("id", str(last.last_id), None), {"count": count}
        # The log must say that it was cut even if auditing is off.
        target = (append.DELETE, "audit_log", str(last.last_id))
        append.record(account_id, *target, [value], about, always=True)
    return int(count)


def _oldest(account_id: str, before: datetime, end: int) -> list[JSONObject]:
    query = sa.select(*entries.columns()).where(
        CHANGES.c.account_id == account_id, CHANGES.c.last_id < end
    )
    found = []
    for row in db.connection().execute(query.order_by(CHANGES.c.first_id).limit(PIECE)):
        if row.occurred_at >= before:
            break
        found.append(row._asdict())
    return found


def _verified(
    account_id: str, start: JSONObject | None, changes: Sequence[JSONObject]
) -> verify.Chain:
    """The chain up to the end of these changes. Raises Conflict where it is broken."""
    chain = verify.chain_of(account_id, start)
    for change in changes:
        verify.take_change(chain, change)
    require_valid(chain)
    return chain


def require_valid(chain: verify.Chain) -> None:
    """Raise Conflict if a chain is broken up to where it has been read."""
    account_id = chain.report.account_id
    passed = min(chain.checkpoints, default=chain.last_id + 1)
    if chain.report.valid and passed <= chain.last_id:
        chain.report.fail(passed, "a checkpoint refers to this entry, which is missing")
    if not chain.report.valid:
        id, reason = chain.report.first_broken_id, chain.report.reason
        log.error("audit chain broken", account=account_id, entry=id, reason=reason)
        raise Conflict(f"The audit chain is broken at entry {id}: {reason}. It was not cut.")


def store_start(starts: sa.Table, account_id: str, chain: verify.Chain, removed: int) -> None:
    """Sign that a log begins after what has been read of its chain. Raises Conflict."""
    place = (chain.report.account_id, chain.last_id, chain.last_checksum)
    signed = checkpoints.sign_chain(*place, removed)
    if signed is None:
        raise Conflict(NO_KEY)
    log.info("audit log cut", **signed)
    values = {**checkpoints.start_row(signed), "account_id": account_id}
    connection, mine = db.connection(), starts.c.account_id == account_id
    if not connection.execute(sa.update(starts).where(mine).values(values)).rowcount:
        connection.execute(sa.insert(starts).values(values))


def _delete(account_id: str, last_id: int) -> None:
    connection = db.connection()
    mine = (CHANGES.c.account_id == account_id, CHANGES.c.first_id <= last_id)
    connection.execute(sa.delete(CHANGES).where(*mine))
    before = (CHECKPOINTS.c.account_id == account_id, CHECKPOINTS.c.entry_id <= last_id)
    connection.execute(sa.delete(CHECKPOINTS).where(*before))
    behind = (HEADS.c.account_id == account_id, HEADS.c.expired_change < last_id)
    connection.execute(sa.update(HEADS).where(*behind).values(expired_change=last_id))
