"""The security log as a log with a chain (`app/audit/chain`).

When it is cut, an event that an enabled stream has not sent yet stays, and so does what follows it.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from app import db
from app.audit import verifications
from app.audit.chain.log import Log, Row
from app.audit.security_log import entries, sealing
from app.audit.security_log.entries import EVENTS, HEADS, STARTS
from app.audit.security_log.models import EventKind, SecurityStream
from app.audit.security_log.recording import PENDING
from app.db import Base
from app.errors import Conflict
from app.types import JSONObject

STREAMS = Base.metadata.tables[SecurityStream.__tablename__]


def _entries_of(event: Row) -> list[JSONObject]:
    return [entries.to_entry(event, event["previous"])]


def _accounts() -> list[str]:
    found = sa.union(sa.select(HEADS.c.account_id), sa.select(PENDING.c.account_id))
    return sorted(db.connection().scalars(found))


def _checkpoints(account_id: str) -> Iterator[JSONObject]:
    if stored := sealing.stored_checkpoint(account_id):
        yield stored


def _settle(account_id: str) -> None:
    # Signed, so that the newest checkpoint is of an event that a cut leaves.
    sealing.seal(account_id)
    sealing.sign(account_id)


def _end(account_id: str) -> int:
    head = sa.select(HEADS.c.number).where(HEADS.c.account_id == account_id)
    own = (STREAMS.c.account_id == account_id, STREAMS.c.is_enabled)
    sent = sa.select(STREAMS.c.sent_number).where(*own)
    newest, confirmed = (
        db.connection().execute(sa.select(head.scalar_subquery(), sent.scalar_subquery())).one()
    )
    return int(newest or 0) if confirmed is None else min(newest or 0, confirmed + 1)


def _record_cut(account_id: str, last_id: int, count: int) -> None:
    checkpoint = sealing.stored_checkpoint(account_id)
    if checkpoint and not sealing.has(account_id, checkpoint):
        raise Conflict("The security log contradicts its checkpoint. It was not cut.")
    details = {"count": count}
    event = entries.own_event(account_id, EventKind.LOG_CUT, "security_log", last_id, details)
    sealing.append(account_id, [event], *sealing.lock_head(account_id))


SECURITY = Log(
    name=verifications.SECURITY,
    rows=EVENTS,
    first="number",
    last="number",
    size=sa.literal(1),
    heads=HEADS,
    head_id="number",
    starts=STARTS,
    suffix=entries.CHAIN_SUFFIX,
    read=entries.read,
    entries_of=_entries_of,
    accounts=_accounts,
    checkpoints=_checkpoints,
    signs_again=True,
    pending=PENDING,
    settle=_settle,
    end=_end,
    record_cut=_record_cut,
)
