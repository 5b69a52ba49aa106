"""Gives events their numbers after the commit: one sealer of the instance, which holds the head.

Numbers become visible in their order, as nobody else gives any meanwhile: whoever has read up to
one misses nothing that comes later. Whoever lists events seals first; a worker seals what nobody
lists, as webhooks get their deliveries in the same transaction.
"""

from __future__ import annotations

import math
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import db, events
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit import sealing
from app.context import deadline, tenancy
from app.errors import Unavailable
from app.operator import deliveries
from app.operator.models import EVENTS, HEADS, IS_PENDING
from app.realtime.feed import changes

BATCH_SIZE = 500
_OF_HEAD = HEADS.c.account_id == SYSTEM_ACCOUNT_ID
_GIVE = (
    sa.update(EVENTS)
    .where(EVENTS.c.account_id == sa.bindparam("_account_id"), EVENTS.c.id == sa.bindparam("_id"))
    .values(number=sa.bindparam("_number"))
)


@events.subscribe(events.Sealing)
def _on_turn(event: events.Sealing) -> None:
    settle()


def settle() -> None:
    """Number the events that are committed: readers of now see them.

    Raises Unavailable if that takes longer than a statement may, or is not possible.
    """
    limit = deadline.limit.get()
    end = time.monotonic() + limit.seconds if limit else math.inf
    with tenancy.across_accounts():
        newest = sa.select(sa.func.max(EVENTS.c.position)).where(IS_PENDING)
        until = db.connection().scalar(newest)
        begun = 0 if until is None else changes.present_generation()
        while until is not None and _number(until, begun):
            if time.monotonic() > end:
                raise Unavailable


def _number(until: int, begun: int) -> bool:
    """Number the oldest events up to a position. Returns whether there may be more."""
    with sealing.transaction():
        last = max(_lock_head(), begun)
        oldest = sa.select(EVENTS).where(IS_PENDING, EVENTS.c.position <= until)
        query = oldest.order_by(EVENTS.c.position).limit(BATCH_SIZE)
        found = [dict(row) for row in db.connection().execute(query).mappings()]
        if not found:
            return False
        for number, event in enumerate(found, last + 1):
            event["number"] = number
        for one in found:  # each names its account
            key = {"_account_id": one["account_id"], "_id": one["id"]}
            db.connection().execute(_GIVE, {**key, "_number": one["number"]})
        deliveries.write(found)
        db.connection().execute(sa.update(HEADS).where(_OF_HEAD).values(number=found[-1]["number"]))
    return len(found) == BATCH_SIZE


def _lock_head() -> int:
    """The newest number; nobody else gives any until the transaction ends."""
    dialect: Any = sqlite if db.has_one_writer() else postgresql
    first = dialect.insert(HEADS).values(account_id=SYSTEM_ACCOUNT_ID, number=0, expired=0)
    db.connection().execute(first.on_conflict_do_nothing())
    newest = sa.select(HEADS.c.number).where(_OF_HEAD).with_for_update()
    return int(db.connection().execute(newest).scalar_one())
