"""The one door to background work: a row in SQL is the truth, Redis only wakes a worker.

`enqueue` writes the row in the caller's transaction, so there is work exactly when there was the
change that asked for it. What carries it out is `app/jobs/worker.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db
from app.context import tenancy
from app.db import like
from app.db.functions import database_now
from app.db.types import Id, Text, UtcDateTime
from app.errors import NotFound
from app.ids import new_id
from app.jobs import leases, notify

ATTEMPTS = 8
KEPT_DAYS = 7
UNDER_WAY_SECONDS = 3600  # then all is over that was under way as a job was asked for
INSTANCE = "00000000-0000-0000-0000-000000000000"  # the account that what is nobody's belongs to
Handler = Callable[[Mapping[str, Any]], None]


class Kind(NamedTuple):
    """How jobs of a kind are carried out."""

    handler: Handler
    attempts: int = ATTEMPTS
    mails: bool = False
    period: int | None = None  # seconds until it is done again


class Job(db.Base):
    """A piece of work that is due at a time."""

    __tablename__ = "jobs"
    __table_args__ = (sa.Index("ix_jobs_due", "status", "due_at"),)

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(Text)
    payload: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    status: Mapped[str] = mapped_column(Text, default="pending")  # then done or failed
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


TABLE: Any = Job.__table__
# A job that was tried and says neither what it failed of nor when it ended is being carried out.
QUEUE = leases.Queue(
    TABLE,
    TABLE.c.attempts,
    waiting=TABLE.c.status == "pending",
    once_taken={TABLE.c.last_error: None, TABLE.c.finished_at: None},
)
KINDS: dict[str, Kind] = {}


def job(
    kind: str, *, attempts: int = ATTEMPTS, mails: bool = False
) -> Callable[[Handler], Handler]:
    """Register what carries out jobs of a kind, how often it is tried, and whether it mails."""

    def register(handler: Handler) -> Handler:
        KINDS[kind] = Kind(handler, attempts, mails)
        return handler

    return register


def every(seconds: int, kind: str) -> Callable[[Handler], Handler]:
    """Register what is to be done again and again, by one worker of all."""

    def register(handler: Handler) -> Handler:
        KINDS[kind] = Kind(handler, period=seconds)
        return handler

    return register


def kinds() -> list[str]:
    """Every kind of job, by name."""
    return sorted(KINDS)


_dropping: ContextVar[bool] = ContextVar("dropping", default=False)


@contextmanager
def dropping() -> Iterator[None]:
    """Inside, no work is asked for: for what is removed again, with nobody told of it."""
    token = _dropping.set(True)
    try:
        yield
    finally:
        _dropping.reset(token)


def enqueue(kind: str, payload: Mapping[str, Any], *, account_id: str, after: int = 0) -> None:
    """Ask for work, as part of the open transaction, due after so many seconds."""
    if kind not in KINDS:
        raise LookupError(f"no job of kind {kind}")
    if _dropping.get():
        return
    new = sa.insert(Job).values(
        account_id=account_id, kind=kind, payload=dict(payload), due_at=database_now(after)
    )
    with tenancy.in_account(account_id):
        db.connection().execute(new)
    db.on_commit(wake)


def wake() -> None:
    """Tell a worker that there is work. A lost wake-up is found by the sweep."""
    url = config.current().redis_url
    if url:
        notify.send(url)


redis_client = notify.redis_client  # for those who keep counters in it


def queue_answers() -> bool:
    """Whether Redis answers."""
    return notify.answers(config.current().redis_url)


def retry(account_id: str, id: str) -> None:
    """Ask again for a job that was given up. Raises NotFound where there is none."""
    given_up = (Job.account_id == account_id, Job.id == id, Job.status == "failed")
    with db.transaction() as session:
        # As a new one: a worker that still has to do with the old one changes nothing of it.
        taken = sa.delete(Job).where(*given_up).returning(Job.kind, Job.payload)
        row = session.execute(taken).first()
        if row is None or row.kind not in KINDS:
            raise NotFound("There is no such job that was given up.")
        enqueue(row.kind, row.payload, account_id=account_id)


def forget(texts: Iterable[str], account_ids: Iterable[str]) -> None:
    """Forget jobs of accounts that were given up and tell one of these texts, in whatever case."""
    payload = sa.cast(TABLE.c.payload, sa.Text)
    told = [like.contains_ignoring_case(payload, json.dumps(text)) for text in texts]
    given_up = (TABLE.c.account_id.in_(account_ids), TABLE.c.status == "failed")
    with db.transaction() as session:
        session.execute(sa.delete(TABLE).where(*given_up, sa.or_(sa.false(), *told)))


def were_planned() -> bool:
    """Whether there has ever been a worker."""
    mine = sa.exists().where(Job.account_id == INSTANCE, Job.kind == "jobs.purge")
    return bool(db.connection().scalar(sa.select(mine)))


@every(3600, "jobs.purge")
def purge(payload: Mapping[str, Any]) -> None:
    """Forget jobs that were over long ago."""
    old = TABLE.c.due_at < database_now(-KEPT_DAYS * 86400)
    db.purge(TABLE, TABLE.c.status != "pending", old)
