"""Hourly deletion of expired changes that are not audited; audited ones stay with their entries."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.audit.entries import HEADS
from app.context import tenancy
from app.realtime.feed import marks
from app.realtime.feed.marks import FEED
from app.types import JSONMapping


@jobs.periodic(3600, "feed.purge")
def purge(payload: JSONMapping) -> None:
    """Delete changes older than the retention period, and note up to which they are gone."""
    expired = FEED.c.occurred_at <= clock.now() - timedelta(
        days=config.current().feed_retention_days
    )
    is_mark = FEED.c.table_name.in_(marks.TABLES)
    last = sa.select(FEED.c.account_id, sa.func.max(FEED.c.change)).where(expired, ~is_mark)
    for account_id, change in db.connection().execute(last.group_by(FEED.c.account_id)).all():
        with tenancy.in_account(account_id), db.transaction() as session:
            is_behind = (HEADS.c.account_id == account_id, HEADS.c.expired_change < change)
            session.execute(sa.update(HEADS).where(*is_behind).values(expired_change=change))
    # Marks stay as long as audited changes around them: without one, a reader would miss it.
    gone = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == FEED.c.account_id)
    db.purge(FEED, expired & (~is_mark | (FEED.c.change <= gone.scalar_subquery())))
