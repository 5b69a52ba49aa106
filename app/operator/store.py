"""Stores events in the transaction of what they tell of, by one statement for each account."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import sqlalchemy as sa

from app import db, events
from app.audit.append import NEWS
from app.context import actor, tenancy, trigger_depth
from app.context.actor import Actor, ActorKind
from app.events import Happened
from app.jobs import wakeups
from app.operator.models import EVENTS
from app.types import JSONObject

# On PostgreSQL a sequence gives it. Either way it is drawn at the end of the transaction.
_NEXT = sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.position), 0) + 1).scalar_subquery()

UNNAMED = (ActorKind.USER, ActorKind.OPERATOR, ActorKind.API_KEY)


@dataclass(frozen=True)
class _New:
    event: Happened
    by: Actor = field(default_factory=actor.current)
    depth: int = field(default_factory=lambda: trigger_depth.chain.get().depth)

    @property
    def account_id(self) -> str:
        return self.event.account_id

    @property
    def row(self) -> JSONObject:
        return {
            "account_id": self.event.account_id,
            "id": self.event.id,
            "type": self.event.type,
            "at": self.event.at,
            "actor": shown(self.by, self.account_id),
            "data": dict(self.event.data),
            "depth": self.depth,
        }


@events.subscribe(events.Happened)
def record(event: Happened) -> None:
    """Store an event as the open transaction ends."""
    db.before_commit(_insert, _New(event), last=True)


def _insert(recorded: list[_New]) -> None:
    account_of = attrgetter("account_id")
    insert = sa.insert(EVENTS)
    if db.has_one_writer():
        insert = insert.values(position=_NEXT)
    for account_id, own in groupby(sorted(recorded, key=account_of), account_of):
        rows = [one.row for one in own]
        with tenancy.in_account(account_id):
            # A list would use the slower executemany.
            db.connection().execute(insert, rows if len(rows) > 1 else rows[0])
        db.on_commit(wakeups.News(NEWS, account_id))


def shown(by: Actor, account_id: str) -> JSONObject:
    """Who did it in an account: names of people, and of their keys, are no part of events."""
    kind, id, name = by.named(account_id)
    return {"kind": kind, "id": id, "name": None if kind in UNNAMED else name}
