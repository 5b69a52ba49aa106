"""Cutting the security log by age, in the way of the audit log (docs/adr/0049, 0052).

An event that an enabled stream has not sent yet stays, and so does what follows it.
"""

from __future__ import annotations

from datetime import datetime

import orjson
import sqlalchemy as sa

from app import clock, db
from app.audit import cut as audit_cut
from app.audit import verify
from app.audit.security_log import entries, sealing
from app.audit.security_log.entries import EVENTS, HEADS, STARTS
from app.audit.security_log.models import SecurityStream
from app.context import actor
from app.db import Base
from app.errors import Conflict
from app.types import JSONObject

PIECE = 500  # events
STREAMS = Base.metadata.tables[SecurityStream.__tablename__]


def count(account_id: str, before: datetime) -> int:
    """The number of events that `cut` would remove."""
    own = EVENTS.c.account_id == account_id
    newer = sa.select(sa.func.min(EVENTS.c.number)).where(own, EVENTS.c.occurred_at >= before)
    end, first = db.connection().scalar(newer), sa.func.min(EVENTS.c.number)
    last = _end(account_id)
    least = db.connection().scalar(sa.select(first).where(own)) or 0
    return max(0, (last if end is None else min(end, last)) - least)


def cut(account_id: str, before: datetime) -> int:
    """Remove the events up to the first one that is not before a moment, but never the newest.

    Returns how many. Interrupted, it can be run again. Raises Conflict without a key, and where the
    chain is broken.
    """
    return audit_cut.cut_in_pieces(account_id, before, lambda: _signed_end(account_id), _cut_piece)


def _signed_end(account_id: str) -> int:
    # Signed, so that the newest checkpoint is of an event that stays.
    sealing.seal(account_id)
    sealing.sign(account_id)
    return _end(account_id)


def _end(account_id: str) -> int:
    """The number of the first event that has to stay, whatever its age."""
    head = sa.select(HEADS.c.number).where(HEADS.c.account_id == account_id)
    own = (STREAMS.c.account_id == account_id, STREAMS.c.is_enabled)
    sent = sa.select(STREAMS.c.sent_number).where(*own)
    newest, confirmed = (
        db.connection().execute(sa.select(head.scalar_subquery(), sent.scalar_subquery())).one()
    )
    return int(newest or 0) if confirmed is None else min(newest or 0, confirmed + 1)


def _cut_piece(account_id: str, before: datetime, end: int) -> int:
    with db.transaction():
        head = sealing.lock_head(account_id)
        start = entries.start_of(account_id)
        found = _oldest(account_id, before, end)
        if not found:
            return 0
        chain = _verified(account_id, start, found)
        removed = len(found) + (start["removed"] if start else 0)
        audit_cut.store_start(STARTS, account_id, chain, removed)
        own = (EVENTS.c.account_id == account_id, EVENTS.c.number <= chain.last_id)
        db.connection().execute(sa.delete(EVENTS).where(*own))
        sealing.append(account_id, [_event(account_id, chain.last_id, len(found))], *head)
    return len(found)


def _oldest(account_id: str, before: datetime, end: int) -> list[JSONObject]:
    found = []
    for event in entries.read(account_id, until=end - 1, limit=PIECE):
        if event["occurred_at"] >= before:
            break
        found.append(event)
    return found


def _verified(account_id: str, start: JSONObject | None, found: list[JSONObject]) -> verify.Chain:
    """The chain up to the end of these events. Raises Conflict where it is broken."""
    chain = verify.Chain(verify.Report(entries.chain_id(account_id)))
    checkpoint = sealing.stored_checkpoint(account_id)
    chain.checkpoints = {checkpoint["entry_id"]: checkpoint["checksum"]} if checkpoint else {}
    if start:
        chain.start_after(start)
    for event in found:
        chain.take(entries.to_entry(event, event["previous"]))
    audit_cut.require_valid(chain)
    if checkpoint and not sealing.has(account_id, checkpoint):
        raise Conflict("The security log contradicts its checkpoint. It was not cut.")
    return chain


def _event(account_id: str, last: int, count: int) -> JSONObject:
    return {
        "account_id": account_id,
        "kind": entries.CUT,
        "target_type": "security_log",
        "target_id": str(last),
        "path": None,
        "user_id": actor.SYSTEM.user_id,
        "occurred_at": clock.now(),
        **dict.fromkeys((*entries.ACTOR, "request_id")),
        "details": orjson.dumps({"count": count}).decode(),
    }
