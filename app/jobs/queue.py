"""The job queue: a row in SQL is the truth, and RQ runs it where there is Redis.

`enqueue` inserts the row in the caller's transaction, so a job exists exactly if the change that
caused it was committed. `app/jobs/worker.py` runs jobs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db
from app.context import actor, tenancy
from app.db import filters, sqlite_driver
from app.db.functions import database_now
from app.db.policy import NotAudited, NotBundled, OnClose, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.errors import NotFound
from app.ids import new_id
from app.jobs import leases, rq_queues, wakeups
from app.jobs.rq_queues import DEFAULT, LONG, MAIL, Announcement, Task
from app.types import JSONMapping, JSONObject

ATTEMPTS = 8
RETENTION_DAYS = 7
IN_FLIGHT_SECONDS = 3600  # by then everything in flight at the time of `enqueue` has ended
INSTANCE = "00000000-0000-0000-0000-000000000000"  # the account of jobs of the whole instance
ACTOR = "actor"
"""The key of a payload with whoever the job acts for."""
Handler = Callable[[JSONMapping], None]
MAX_OVERDUE_SECONDS = 60


class JobState(StrEnum):
    PENDING = "pending"
    FAILED = "failed"
    DONE = "done"


class Kind(NamedTuple):
    """The way in which jobs of a kind run."""

    handler: Handler
    attempts: int = ATTEMPTS
    mails: bool = False
    period: int | None = None  # seconds until the next run
    is_long: bool = False

    @property
    def queue(self) -> str:
        """The queue of RQ that its jobs wait in."""
        return MAIL if self.mails else LONG if self.is_long else DEFAULT


class Job(db.Base):
    __tablename__ = "jobs"
    __table_args__ = (sa.Index("ix_jobs_due", "status", "due_at"),)
    __policy__ = TablePolicy(
        audit=NotAudited("jobs"),
        bundle=NotBundled("work of the instance it was enqueued on"),
        on_close=OnClose.EXPIRES,
        id_names=("job_id",),
        sample={"status": JobState.FAILED},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(Text)
    payload: Mapped[JSONObject] = mapped_column(sa.JSON)
    status: Mapped[str] = mapped_column(Text, default=JobState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


TABLE = Job.__table__
# A job with attempts, but neither last_error nor finished_at, is running.
QUEUE = leases.Queue(
    TABLE,
    TABLE.c.attempts,
    pending=TABLE.c.status == JobState.PENDING,
    on_claim={TABLE.c.last_error: None, TABLE.c.finished_at: None},
)
IDLE_SECONDS = 15
"""How long a loop of a worker that hears of new rows waits at most while none is due."""
KINDS: dict[str, Kind] = {}
WORK = wakeups.Topic("work", lock=0x41747277)
"""Queues with work for workers without Redis."""


def job(
    kind: str, *, attempts: int = ATTEMPTS, mails: bool = False, is_long: bool = False
) -> Callable[[Handler], Handler]:
    """Register the handler of a kind and its maximum of attempts.

    Jobs that send mail, and those that an account can make last for minutes, have queues of their
    own, so that no others wait for them.
    """

    def register(handler: Handler) -> Handler:
        KINDS[kind] = Kind(handler, attempts, mails, is_long=is_long)
        return handler

    return register


def periodic(seconds: int, kind: str) -> Callable[[Handler], Handler]:
    """Register a periodic job, which one of all workers runs."""

    def register(handler: Handler) -> Handler:
        KINDS[kind] = Kind(handler, period=seconds)
        return handler

    return register


def kinds() -> list[str]:
    """Return the names of all kinds."""
    return sorted(KINDS)


def queue_of(kind: str) -> str:
    """Return the queue of RQ that jobs of a kind wait in."""
    return KINDS[kind].queue if kind in KINDS else DEFAULT


class Runner(NamedTuple):
    """Runs the tasks of a queue of RQ, and finds those that are due."""

    run: Callable[..., None]
    due: Callable[[], Iterable[tuple[str, ...]]]


RUNNERS: dict[str, Runner] = {}
uses_rq = threading.Event()
"""Whether this process works through RQ; else it looks for due rows of all accounts."""


def task(
    queue_name: str, due: Callable[[], Iterable[tuple[str, ...]]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register what runs the tasks of a queue, and what finds the ids of those that are due."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        RUNNERS[queue_name] = Runner(run, due)
        return run

    return register


_dropping: ContextVar[bool] = ContextVar("dropping", default=False)


@contextmanager
def discard_enqueued() -> Iterator[None]:
    """Discard jobs enqueued inside the block: its changes are removed again unnoticed."""
    token = _dropping.set(True)
    try:
        yield
    finally:
        _dropping.reset(token)


def enqueue(
    kind: str, payload: JSONMapping, *, account_id: str, after: int = 0, on_behalf: bool = False
) -> None:
    """Enqueue a job in the open transaction, due after this many seconds.

    `on_behalf`: what it changes is by the current actor, else by the service itself.
    """
    if kind not in KINDS:
        raise LookupError(f"no job of kind {kind}")
    if _dropping.get():
        return
    id = new_id()
    new = sa.insert(Job).values(
        account_id=account_id,
        id=id,
        kind=kind,
        payload={**payload, ACTOR: actor.stored()} if on_behalf else dict(payload),
        due_at=database_now(after),
    )
    with tenancy.in_account(account_id):
        db.connection().execute(new)
    announce_on_commit(queue_of(kind), account_id, id, seconds=after)


def announce(queue_name: str, *ids: str, seconds: float = 0) -> None:
    """Have RQ run a task in so many seconds. If that is lost, a sweep finds what is due."""
    url = config.current().redis_url
    if url:
        Announcement(url, Task(queue_name, ids), seconds)()


def announce_on_commit(queue_name: str, *ids: str, seconds: float = 0) -> None:
    """Have RQ run a task so many seconds after the open transaction commits.

    Without Redis, workers look when rows are due: this tells them of one that is due before their
    next look.
    """
    url = config.current().redis_url
    if url:
        db.on_commit(Announcement(url, Task(queue_name, ids), seconds))
    elif seconds < IDLE_SECONDS:
        db.on_commit(_mark_work if db.has_one_writer() else wakeups.News(WORK, queue_name))


def _mark_work() -> None:
    sqlite_driver.mark(db.sqlite_file(), WORK.name)


redis_client = rq_queues.redis_client


def is_redis_up() -> bool:
    """Whether Redis responds."""
    return rq_queues.is_redis_up(config.current().redis_url)


def retry(account_id: str, id: str) -> None:
    """Enqueue a failed job again. Raises NotFound."""
    failed = (Job.account_id == account_id, Job.id == id, Job.status == JobState.FAILED)
    with db.transaction() as session:
        # As a new row, out of reach of a worker that still runs the old one.
        deleted = sa.delete(Job).where(*failed).returning(Job.kind, Job.payload)
        row = session.execute(deleted).first()
        if row is None or row.kind not in KINDS:
            raise NotFound("No failed job with this id.")
        enqueue(row.kind, row.payload, account_id=account_id)


def delete_failed(texts: Iterable[str], account_ids: Iterable[str]) -> None:
    """Delete failed jobs of accounts whose payload contains one of these texts, in any case."""
    payload = sa.cast(TABLE.c.payload, sa.Text)
    matches = [filters.contains_ignoring_case(payload, json.dumps(text)) for text in texts]
    failed = (TABLE.c.account_id.in_(account_ids), TABLE.c.status == JobState.FAILED)
    with db.transaction() as session:
        session.execute(sa.delete(TABLE).where(*failed, sa.or_(sa.false(), *matches)))


@periodic(3600, "jobs.purge")
def purge(payload: JSONMapping) -> None:
    """Delete jobs that ended long ago."""
    old = TABLE.c.due_at < database_now(-RETENTION_DAYS * 86400)
    db.purge(TABLE, TABLE.c.status != JobState.PENDING, old)


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


def find_workers() -> Workers:
    """The traces of workers, in one statement."""
    of_instance = Job.account_id == INSTANCE
    scheduled = sa.exists().where(of_instance, Job.kind == "jobs.purge")
    last_seen = sa.select(sa.func.max(Job.finished_at)).where(of_instance).scalar_subquery()
    oldest = sa.select(sa.func.min(QUEUE.table.c.due_at)).where(QUEUE.due()).scalar_subquery()
    has_run, seen, due_at = db.connection().execute(sa.select(scheduled, last_seen, oldest)).one()
    overdue = max(0.0, (clock.now() - due_at).total_seconds()) if due_at else 0.0
    return Workers(bool(has_run), seen, overdue)
