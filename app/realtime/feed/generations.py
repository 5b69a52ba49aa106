"""Generations of change numbers: a new one begins when the database went back in time.

After a restore, a recovery to a point in time or a failover that lost commits, the numbers that
readers have seen would be given again, to other changes. A generation begins above all numbers that
were ever given, and the feed has nothing of the time before it: every reader reads anew, as a list
that was read just before may show what is no longer so (docs/realtime.md#what-you-can-rely-on).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.audit.models import AuditChange, AuditHead, FeedChange, FeedGeneration
from app.context import tenancy

NEWEST = sa.select(sa.func.max(FeedGeneration.first_change))
_NUMBERS = (
    *(AuditChange.last_id, FeedChange.change),
    *(AuditHead.expired_change, FeedGeneration.first_change),
)
# A server's timeline changes as it is promoted, or recovered to a point in time. None on a replica,
# whose readers look at what the primary decided.
_TIMELINE = sa.literal_column(
    "CASE WHEN pg_is_in_recovery() THEN NULL ELSE"
    " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END",
    sa.BigInteger,
)


def first_number() -> int:
    """The microseconds since 1970: more than the number of any change, as no instance makes a
    million changes a second for years. JavaScript's numbers hold it until 2255.
    """
    return int(clock.now().timestamp() * 1_000_000)


def next_number() -> int:
    """A number above those of all changes so far, also if the clock was set back."""
    newest = sa.select(*(sa.select(sa.func.max(one)).scalar_subquery() for one in _NUMBERS))
    numbers = db.connection().execute(newest).one()
    return max(first_number(), *((number or 0) + 1 for number in numbers))


def present() -> int:
    """The first number of the present generation; begins one if the server's timeline changed."""
    begun, *lines = db.connection().execute(sa.select(NEWEST.scalar_subquery(), *timelines())).one()
    return start_new() if is_ended(*lines) else begun or 0


def timelines() -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Columns with the timeline of the present generation, and that of the server."""
    if db.has_one_writer():
        return sa.null(), sa.null()
    newest = FeedGeneration.first_change.desc()
    return sa.select(FeedGeneration.timeline).order_by(newest).limit(1).scalar_subquery(), _TIMELINE


def is_ended(known: int | None, present: int | None) -> bool:
    """Whether the server left the timeline on which the present generation began."""
    return known is not None and present is not None and known != present


def start_new(*, always: bool = False) -> int:
    """Begin a generation, unless another process just did so; returns its first number.

    `always` begins one although the server's timeline is that of the present one.
    """
    with tenancy.as_owner(), db.transaction() as session:
        if not db.has_one_writer():
            # A writer that has drawn its number ends first: whoever reads anew sees its change.
            session.execute(sa.text("LOCK TABLE audit_heads IN EXCLUSIVE MODE"))
        begun = session.scalar(NEWEST) or 0
        known, present = session.execute(sa.select(*timelines())).one()
        if not always and not is_ended(known, present):
            return begun
        first = next_number()
        session.add(FeedGeneration(first_change=first, timeline=present))
        move_sequence(first)
        return first


def move_sequence(first: int) -> None:
    """Let PostgreSQL draw numbers above this one; on SQLite they follow from what is stored."""
    if not db.has_one_writer():
        drawn = sa.func.nextval("audit_log_ids")
        moved = sa.func.setval("audit_log_ids", sa.func.greatest(first, drawn))
        db.connection().execute(sa.select(moved))
