"""A worker process: one thread per worker loop.

One loop runs jobs, one those that send mail (a mail server may be slow), one those that take long,
and features add their own. With Redis, RQ hands out the work (`rq_worker.py`); without it, or while
it is away, the loops look for what is due: when PostgreSQL tells them (`wakeups.py`) or SQLite's
file changes, when the next row is due, and now and then. A worker claims due jobs under a lease by
the database's clock, and renews it as long as it lives. If it dies, the lease expires and another
worker takes over: jobs run at least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn
from uuid import NAMESPACE_URL, uuid5

import sqlalchemy as sa
import structlog
from flask import current_app
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db
from app.context import actor, tenancy, tracing
from app.db import engine, sqlite_driver
from app.db.functions import database_now
from app.jobs import INSTANCE, KINDS, QUEUE, Job, JobState, Kind, leases, queue, turns, wakeups
from app.jobs.queue import Claim, JobError
from app.jobs.rq_queues import DEFAULT, EXTENSIONS, LONG, MAIL
from app.types import JSONMapping

log = structlog.get_logger()

LEASE_SECONDS = 120
BATCH_SIZE = 20
MAX_SWEPT = 500
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
PERIODIC_RETRY = 4  # caps the delay: periodic jobs count attempts over all their runs
SWEEP_SECONDS = 3
EMBEDDED_SWEEP_SECONDS, WATCH_SECONDS = 0.5, 0.4
STOP_SECONDS, STOP_CHECK_SECONDS = 20, 1
Work = Callable[[threading.Event, threading.Event], None]


def _unknown(payload: JSONMapping) -> None:
    raise LookupError("unknown kind of job")


# During a rolling upgrade the newer release may know the kind.
UNKNOWN = Kind(_unknown)


class Loop(NamedTuple):
    work: Work
    queue_name: str | None


_loops: dict[str, Loop] = {}


class JobFailed(Exception):
    """A job that is given up, for RQ's list of failed ones: its kind, and the name of the error."""


def loop(name: str, queue_name: str | None = None) -> Callable[[Work], Work]:
    """Register a worker loop: called with (stop, woken), it runs until `stop` is set.

    `woken` is set when there may be work in its queue; the loop must also poll now and then. A
    dispatcher finds in `turns.served` the accounts that jobs of RQ run for.
    """

    def register(work: Work) -> Work:
        _loops[name] = Loop(work, queue_name)
        return work

    return register


def run_due(where: leases.Where = None, stop: threading.Event | None = None) -> int:
    """Run due jobs, or those that match, until none is left or `stop` is set.

    Accounts take turns by batches: one with many jobs does not hold up the others.

    Returns the number of attempts.
    """
    attempts, stop = 0, stop or threading.Event()
    served = set[str]()  # accounts that have had a batch in this round
    try:
        while (due := _find_due(where, served)) or served:
            served = served | {job.account_id for job in due} if due else set()
            for job in due:
                if stop.is_set():  # a job started now would be cut off
                    return attempts
                # Claimed one by one: a lease must not expire while other jobs run.
                row = _claim(job.account_id, job.id)
                if row:
                    attempts += 1
                    with suppress(JobFailed):
                        _run(row)
    finally:
        # A worker must not keep a broken connection.
        db.db.session.remove()
    return attempts


def _due_in(queue_name: str) -> Iterable[tuple[str, ...]]:
    due = leases.find_due(QUEUE, MAX_SWEPT, where=_is_in(queue_name))
    return [(row.account_id, row.id) for row in due]


@queue.task(DEFAULT, partial(_due_in, DEFAULT))
@queue.task(MAIL, partial(_due_in, MAIL))
@queue.task(LONG, partial(_due_in, LONG))
@queue.task(EXTENSIONS, partial(_due_in, EXTENSIONS))
def run_job(account_id: str, id: str) -> None:
    """Run a job if it is due. Raises JobFailed if it is given up."""
    try:
        row = _claim(account_id, id)
        if row:
            _run(row)
    finally:
        db.db.session.remove()


def _find_due(where: leases.Where, served: Collection[str]) -> Sequence[sa.Row[Any]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if served:
        conditions.append(Job.account_id.not_in(sorted(served)))
    if where is not None:
        conditions.append(where)
    return leases.find_due(QUEUE, BATCH_SIZE, where=sa.and_(sa.true(), *conditions))


def _claim(account_id: str, id: str) -> sa.Row[Any] | None:
    claimed = leases.claim(QUEUE, account_id, [id], LEASE_SECONDS, Job.kind, Job.payload)
    return claimed[0] if claimed else None


def _run(row: sa.Row[Any]) -> None:
    """Run a claimed job. Raises JobFailed if it is given up."""
    kind = KINDS.get(row.kind, UNKNOWN)
    if row.attempts > kind.attempts and not kind.period:  # every worker that ran it died
        _give_up(row, "WorkerLost")
    # Jobs of the whole instance work across accounts.
    scope = tenancy.ALL_ACCOUNTS if row.account_id == INSTANCE else row.account_id
    try:
        span = tracing.job(row.kind, row.account_id, row.id)
        by = row.payload.get(queue.ACTOR)
        acting = actor.acting(actor.restored(by)) if by else nullcontext()
        with _lease_renewed(row, kind), tenancy.scoped_to(scope), span, acting:
            kind.handler({"account_id": row.account_id, **row.payload})
    except Exception as error:  # noqa: BLE001 - recorded with the job
        job_error = error if isinstance(error, JobError) else None
        name = str(job_error or type(error).__name__)  # other messages may quote personal data
        log.warning("job failed", kind=row.kind, job=row.id, error=name)
        attempts = min(row.attempts, PERIODIC_RETRY) if kind.period else row.attempts
        is_over = attempts >= kind.attempts or (job_error is not None and job_error.is_final)
        if not kind.period and is_over:
            _give_up(row, name)
        delay = min(FIRST_RETRY_SECONDS * 4 ** (attempts - 1), LAST_RETRY_SECONDS)
        _repeat(row, delay, {"last_error": name})
    else:
        if kind.period:
            _repeat(row, _seconds(kind), {"finished_at": clock.now(), "payload": {}})
        else:
            _change(row, queue.done())


def _seconds(kind: Kind) -> int:
    """The seconds until a periodic job runs again."""
    return kind.period() if callable(kind.period) else kind.period or 0


@contextmanager
def _lease_renewed(row: sa.Row[Any], kind: Kind) -> Iterator[None]:
    app, over = current_app._get_current_object(), threading.Event()  # type: ignore[attr-defined]
    seconds = kind.lease or LEASE_SECONDS
    if kind.lease:  # which nobody knew when the job was claimed
        _change(row, {"due_at": database_now(seconds)})

    def renew() -> None:
        with app.app_context():
            while not over.wait(seconds / 4):
                try:
                    _change(row, {"due_at": database_now(seconds)})
                except SQLAlchemyError as error:  # the next renewal may still be in time
                    log.warning("a lease is not renewed", job=row.id, error=type(error).__name__)
                db.db.session.remove()

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    token = queue.running.set(Claim(row.account_id, row.id, row.attempts))
    try:
        yield
    finally:
        queue.running.reset(token)
        over.set()
        thread.join()  # else its lease could be renewed after its end


def _repeat(row: sa.Row[Any], seconds: int, changes: JSONMapping) -> None:
    _change(row, {**changes, "due_at": database_now(seconds)})
    queue.announce(queue.queue_of(row.kind), row.account_id, row.id, seconds=seconds)


def _give_up(row: sa.Row[Any], error: str) -> NoReturn:
    _change(row, {"status": JobState.FAILED, "last_error": error, "finished_at": clock.now()})
    raise JobFailed(row.kind, error) from None  # without a message that may quote personal data


def _change(row: sa.Row[Any], changes: JSONMapping) -> None:
    with db.transaction():
        leases.change(QUEUE, row.account_id, [(row.id, row.attempts)], changes)


def schedule_periodic() -> None:
    """Insert missing rows of periodic jobs, reset failed ones, and follow other times of day."""
    periodic = {name for name, kind in KINDS.items() if kind.period}
    pending = (Job.account_id == INSTANCE, Job.kind.in_(periodic), Job.status == JobState.PENDING)
    with db.transaction() as session:
        scheduled = set(session.scalars(sa.select(Job.kind).where(*pending)))
        is_sqlite = engine.current_engine().dialect.name == "sqlite"
        insert = sqlite.insert if is_sqlite else postgresql.insert
        for kind in sorted(periodic - scheduled):
            # The id derives from the kind: if two workers start at once, one inserts the row.
            id = str(uuid5(NAMESPACE_URL, f"atrium:{kind}"))
            new = {"account_id": INSTANCE, "id": id, "kind": kind, "payload": {}}
            period = KINDS[kind].period
            first = period() if callable(period) else 0
            row = insert(Job).values(**new, due_at=database_now(first))
            # Not the clock itself: Citus takes no such function there.
            # A worker of an older release, which does not know the kind, may have failed it.
            reset = {"status": JobState.PENDING, "due_at": row.excluded.due_at}
            session.execute(
                row.on_conflict_do_update(
                    index_elements=["account_id", "id"],
                    set_=reset,
                    where=Job.status == JobState.FAILED,
                )
            )
        for kind in sorted(scheduled):
            period = KINDS[kind].period
            if callable(period):  # what is due already, runs or is tried again stays as it is
                is_idle = sa.or_(Job.attempts == 0, Job.finished_at.is_not(None))
                later = (*pending, Job.kind == kind, is_idle, Job.due_at > database_now())
                due = database_now(period())
                session.execute(sa.update(Job).where(*later).values(due_at=due))


def sweep_seconds() -> float:
    """Return how long a worker loop waits for a wake-up before it polls, while rows are due."""
    has_news = config.current().redis_url or db.sqlite_file() or hears.is_set()
    return SWEEP_SECONDS if has_news else EMBEDDED_SWEEP_SECONDS


def patience(next_due: Callable[[], float], shortest: float = SWEEP_SECONDS) -> float:
    """Return how long a worker loop waits for a wake-up: until a row is due, within bounds."""
    if config.current().redis_url or not (db.sqlite_file() or hears.is_set()):
        return min(shortest, sweep_seconds())
    try:
        seconds = next_due()
    except SQLAlchemyError:
        return sweep_seconds()
    # What is due already, and still there, waits for something that nobody announces.
    return min(seconds, queue.IDLE_SECONDS) if seconds > 0 else min(shortest, SWEEP_SECONDS)


def last_news() -> object:
    """Return what changes as a process announces work, on SQLite without Redis; None elsewhere."""
    file = None if config.current().redis_url else db.sqlite_file()
    return None if file is None else sqlite_driver.marked(file, queue.WORK.name)


@loop("jobs", DEFAULT)
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Run due jobs, except those with a queue of their own, until `stop` is set."""
    work_on(stop, woken, DEFAULT)


@loop("mails", MAIL)
def mail(stop: threading.Event, woken: threading.Event) -> None:
    """Run due jobs that send mail until `stop` is set."""
    work_on(stop, woken, MAIL)


@loop("long", LONG)
def run_long(stop: threading.Event, woken: threading.Event) -> None:
    """Run due jobs that take long until `stop` is set."""
    work_on(stop, woken, LONG)


def _is_in(queue_name: str) -> sa.ColumnElement[bool]:
    if queue_name == DEFAULT:  # also of kinds that only another release knows
        return Job.kind.not_in([name for name, kind in KINDS.items() if kind.queue != DEFAULT])
    return Job.kind.in_([name for name, kind in KINDS.items() if kind.queue == queue_name])


def work_on(stop: threading.Event, woken: threading.Event, queue_name: str) -> None:
    """Run the due jobs of a queue until `stop` is set."""
    is_scheduled = False
    while not stop.is_set():
        woken.clear()
        try:
            if not is_scheduled:
                schedule_periodic()
                is_scheduled = True
            if not queue.uses_rq.is_set():
                run_due(_is_in(queue_name), stop)
        except Exception as error:  # noqa: BLE001 - the worker outlives its database
            log.warning("worker cannot reach its jobs", error=type(error).__name__)
        seconds = patience(partial(leases.seconds_to_next, QUEUE, _is_in(queue_name)))
        db.db.session.remove()
        woken.wait(seconds)


_events: list[tuple[str | None, threading.Event]] = []
hears = threading.Event()
"""Whether this process is told, by NOTIFY of PostgreSQL, which queues have work."""


def serve(stop: threading.Event) -> None:
    """Run every worker loop, and what RQ hands out, until `stop` is set."""
    # Made before RQ hands out jobs, which would else run without the dispatchers.
    threads = [_make_thread(name, loop, stop) for name, loop in _loops.items()]
    with _rq(stop), _news():
        for thread in threads:
            thread.start()
        seen = last_news()
        # In short waits, as a signal just before one does not end it.
        while not stop.wait(STOP_CHECK_SECONDS if seen is None else WATCH_SECONDS):
            if seen != (seen := last_news()):
                _wake(None)
        _wake(None)
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))


def _rq(stop: threading.Event) -> AbstractContextManager[None]:
    url = config.current().redis_url
    if not url:
        return nullcontext()
    from app.jobs import rq_worker  # only with Redis, as RQ takes memory

    return rq_worker.running(url, stop, sweep_seconds())


def _news() -> AbstractContextManager[None]:
    if config.current().redis_url or db.has_one_writer():
        return nullcontext()
    return wakeups.listening(queue.WORK, _wake, hears)


def _wake(queue_names: set[str] | None) -> None:
    for queue_name, woken in list(_events):
        if queue_names is None or queue_name in queue_names:
            woken.set()


def _make_thread(name: str, loop: Loop, stop: threading.Event) -> threading.Thread:
    app, woken = current_app._get_current_object(), threading.Event()  # type: ignore[attr-defined]
    _events.append((loop.queue_name, woken))
    serving = ExitStack()
    if loop.queue_name:
        serving.enter_context(turns.serving(loop.queue_name, woken))

    def run() -> None:
        with app.app_context(), serving:
            loop.work(stop, woken)
        _events.remove((loop.queue_name, woken))

    return threading.Thread(target=run, name=name, daemon=True)
