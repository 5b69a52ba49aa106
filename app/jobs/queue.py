"""The job queue: a row in SQL is the truth, and RQ runs it where there is Redis.

`enqueue` inserts the row in the caller's transaction, so a job exists exactly if the change that
caused it was committed. `app/jobs/worker.py` runs jobs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from app.jobs.rq_queues import DEFAULT, EXTENSIONS, LONG, MAIL, Announcement, Task
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
    period: int | Callable[[], int] | None = None
    """Seconds until the next run; a function computes them for the first one, too."""
    is_long: bool = False
    runs_extension: bool = False
    """Whether it runs code of an extension, which others must not wait for."""
    lease: int | None = None
    """Seconds that a lost worker keeps a job of it; None for those of `worker.LEASE_SECONDS`."""

    @property
    def queue(self) -> str:
        """The queue of RQ that its jobs wait in."""
        if self.runs_extension:
            return EXTENSIONS
        return MAIL if self.mails else LONG if self.is_long else DEFAULT


class JobError(Exception):
    """The failure of a job in words that everybody may read: no values of clients.

    Of other exceptions only the name is kept, as their messages may quote personal data.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
        """Whether another attempt would fail as well."""


class LeaseLost(Exception):
    """Another worker has taken the job over."""


class Claim(NamedTuple):
    """A job that this context runs, and the number of its claim."""

    account_id: str
    id: str
    number: int


running: ContextVar[Claim | None] = ContextVar("running_job", default=None)
"""The job that runs in this context."""


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
    in_work=TABLE.c.status == JobState.PENDING,
)
IDLE_SECONDS = 15
"""How long a loop of a worker that hears of new rows waits at most while none is due."""
KINDS: dict[str, Kind] = {}
WORK = wakeups.Topic("work", lock=0x41747277)
"""Queues with work for workers without Redis."""


def job(
    kind: str,
    *,
    attempts: int = ATTEMPTS,
    mails: bool = False,
    is_long: bool = False,
    runs_extension: bool = False,
    lease: int | None = None,
) -> Callable[[Handler], Handler]:
    """Register the handler of a kind and its maximum of attempts.

    Jobs that send mail, and those that an account can make last for minutes, have queues of their
    own, so that no others wait for them.
    """

    def register(handler: Handler) -> Handler:
        KINDS[kind] = Kind(handler, attempts, mails, None, is_long, runs_extension, lease)
        return handler

    return register


def periodic(seconds: int | Callable[[], int], kind: str) -> Callable[[Handler], Handler]:
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


class NewJob(NamedTuple):
    """A job for `enqueue_many`."""

    account_id: str
    kind: str
    payload: JSONMapping
    refusal: str | None = None
    """Why it must not run: it is stored as failed, for people to see."""


def enqueue_many(new: Sequence[NewJob]) -> None:
    """Enqueue jobs that are due at once, in the open transaction."""
    now = clock.now()
    announced = list[tuple[str, str, str]]()
    for account_id in sorted({one.account_id for one in new}):
        rows = list[JSONObject]()
        for one in (one for one in new if one.account_id == account_id and not _dropping.get()):
            id = new_id()
            row = {
                "account_id": account_id,
                "id": id,
                "kind": one.kind,
                "payload": dict(one.payload),
                "status": JobState.FAILED if one.refusal else JobState.PENDING,
                "last_error": one.refusal,
                "finished_at": now if one.refusal else None,
            }
            rows.append(row)
            announced += [] if one.refusal else [(queue_of(one.kind), account_id, id)]
        if rows:
            with tenancy.in_account(account_id):
                # A list of one would take the slower way of many.
                db.connection().execute(_NEW, rows if len(rows) > 1 else rows[0])
    if not config.current().redis_url:
        for queue_name in {name for name, _, _ in announced}:
            announce_on_commit(queue_name)
    elif announced:

        def announce_all() -> None:
            for one in announced:
                announce(*one)

        db.on_commit(announce_all)


_NEW = sa.insert(Job).values(due_at=database_now())


def change_running(values: Mapping[str, object]) -> None:
    """Change the row of the job that runs, in the open transaction. Raises LeaseLost.

    What the transaction writes is written once: if the worker dies before the commit, nothing is,
    and a worker whose lease is over cannot commit.
    """
    claim = running.get()
    assert claim is not None  # noqa: S101 - only jobs call it
    held = leases.held(QUEUE, claim.account_id, claim.number)
    is_instance = claim.account_id == INSTANCE
    with tenancy.scoped_to(tenancy.ALL_ACCOUNTS if is_instance else claim.account_id):
        change = sa.update(TABLE).where(*held, TABLE.c.id == claim.id).values(dict(values))
        if db.connection().execute(change).rowcount != 1:
            raise LeaseLost


def finish_running() -> None:
    """Mark the job that runs as done, in the transaction of its effects. Raises LeaseLost."""
    change_running(done())


def done() -> JSONObject:
    """The columns of a job that succeeded.

    The payload may hold personal data, and nobody needs it any more.
    """
    ended = {"payload": {}, "finished_at": clock.now(), "last_error": None}
    return {"status": JobState.DONE, **ended}


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
