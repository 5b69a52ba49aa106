"""Whether a worker runs, as far as the database shows: no job is overdue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from app import clock, db
from app.jobs.queue import INSTANCE, QUEUE, Job

MAX_OVERDUE_SECONDS = 60


@dataclass(frozen=True)
class Workers:
    """The traces of workers in the table of jobs."""

    has_run: bool
    last_seen: datetime | None
    """The end of the latest periodic job; one is due every few minutes."""
    overdue_seconds: float

    @property
    def is_late(self) -> bool:
        """Whether a job waits longer than a running worker lets it."""
        return self.overdue_seconds > MAX_OVERDUE_SECONDS

    @property
    def are_running(self) -> bool:
        """Whether a worker has run, and no job is overdue."""
        return self.has_run and not self.is_late


def find() -> Workers:
    """The traces of workers, in one statement."""
    of_instance = Job.account_id == INSTANCE
    scheduled = sa.exists().where(of_instance, Job.kind == "jobs.purge")
    last_seen = sa.select(sa.func.max(Job.finished_at)).where(of_instance).scalar_subquery()
    oldest = sa.select(sa.func.min(QUEUE.table.c.due_at)).where(QUEUE.due()).scalar_subquery()
    has_run, seen, due_at = db.connection().execute(sa.select(scheduled, last_seen, oldest)).one()
    overdue = max(0.0, (clock.now() - due_at).total_seconds()) if due_at else 0.0
    return Workers(bool(has_run), seen, overdue)
