"""Listing events, and forgetting those that are older than what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.context import shown_accounts, tenancy
from app.errors import FeedExpired, InvalidValues, problem
from app.operator import deliveries, sealing, types
from app.operator.models import EVENTS, HEADS
from app.realtime.feed import changes
from app.types import JSONMapping, JSONObject

SCANNED = 10_000
"""Events that one page looks through for its types."""
_OF_HEAD = HEADS.c.account_id == SYSTEM_ACCOUNT_ID


class EventsExpired(FeedExpired):
    """A position that is older than what is kept."""

    message = "Events after this one are not kept any more: read the accounts and users anew."


@dataclass(frozen=True)
class Bounds:
    """The newest number, and the one up to which events are not kept any more."""

    newest: int
    expired: int


def bounds() -> Bounds:
    """The bounds of the events that are sealed."""
    query = sa.select(HEADS.c.number, HEADS.c.expired).where(_OF_HEAD)
    row = db.connection().execute(query).first()
    number, expired = row or (0, 0)
    # Numbers of a time before the database was restored are those of other events.
    expired = max(expired, changes.present_generation())
    return Bounds(max(number, expired), expired)


def page(after: int, written: Sequence[str], limit: int) -> JSONObject:
    """The events after a number, the oldest first, and where to go on.

    `written` are types or `user.*`; none: all. Raises InvalidValues, FeedExpired, Unavailable.
    """
    sealing.settle()
    with tenancy.across_accounts():
        known = bounds()
        if after > known.newest:
            message = f"The newest event is {known.newest}."
            raise InvalidValues([problem("after", "out_of_range", message)])
        if 0 < after < known.expired:
            oldest = sa.select(sa.func.min(EVENTS.c.number)).where(EVENTS.c.number > known.expired)
            raise EventsExpired(db.connection().scalar(oldest) or 0)
        start = max(after, known.expired)
        later = sa.select(EVENTS).where(EVENTS.c.number > start, EVENTS.c.number <= known.newest)
        span = later.order_by(EVENTS.c.number).limit(SCANNED).subquery()
        wanted = [span.c.type.in_(sorted(types.expand(written)))] if written else []
        query = sa.select(span).where(*wanted).order_by(span.c.number).limit(limit + 1)
        found = [dict(row) for row in db.connection().execute(query).mappings()]
        items = [deliveries.content(one) for one in found[:limit]]
        for one in items:
            shown_accounts.note(one["account_id"])
        if len(found) > limit:
            return {"items": items, "next": found[limit - 1]["number"], "has_more": True}
        numbers = sa.select(sa.func.count(), sa.func.max(span.c.number))
        count, last = db.connection().execute(numbers).one()
        has_more = count == SCANNED and last < known.newest
        return {"items": items, "next": last if has_more else known.newest, "has_more": has_more}


def newest(
    written: Sequence[str], account_id: str | None, before: int | None, limit: int
) -> list[JSONObject]:
    """The newest events, for people who look at them; those of an account, if one is named."""
    sealing.settle()
    conditions: list[Any] = [EVENTS.c.number > bounds().expired]
    if written:
        conditions.append(EVENTS.c.type.in_(sorted(types.expand(written))))
    if account_id:
        conditions.append(EVENTS.c.account_id == account_id)
    if before is not None:
        conditions.append(EVENTS.c.number < before)
    query = sa.select(EVENTS).where(*conditions).order_by(EVENTS.c.number.desc()).limit(limit)
    with tenancy.across_accounts():
        found = [dict(row) for row in db.connection().execute(query).mappings()]
    for one in found:
        shown_accounts.note(one["account_id"])
    return found


@jobs.periodic(3600, "operator.purge")
def purge(payload: JSONMapping) -> None:
    """Delete events older than the retention period, and note up to which they are gone."""
    cutoff = clock.now() - timedelta(days=config.current().event_retention_days)
    last = db.connection().scalar(
        sa.select(sa.func.max(EVENTS.c.number)).where(EVENTS.c.at <= cutoff)
    )
    if last is not None:
        with db.transaction() as session:
            behind = (_OF_HEAD, HEADS.c.expired < last)
            session.execute(sa.update(HEADS).where(*behind).values(expired=last))
        db.purge(EVENTS, EVENTS.c.number <= last)
