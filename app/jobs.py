"""The one door to background work: a row in SQL is the truth, Redis only wakes a worker.

`enqueue` writes the row in the caller's transaction, so there is work exactly when there was the
change that asked for it. A worker claims due rows under a lease of the database's clock, which it
renews as long as it lives; one that dies lets it run out, and another takes over. Jobs are
therefore run at least once.

A worker process has lines of work, each a thread: one for jobs, one for those that mail, as a mail
server may keep them waiting, and those that features add.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import sqlalchemy as sa
import structlog
from flask import current_app
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db, engines, leases, tenancy, wakeups
from app.column_types import Id, Moment, Text
from app.database_clock import database_now
from app.errors import NotFound
from app.ids import new_id

log = structlog.get_logger()

LEASE_SECONDS = 120
LARGEST_LOOK = 20
ATTEMPTS = 8
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
SWEEP_SECONDS = 3
EMBEDDED_SWEEP_SECONDS = 0.5
STOP_SECONDS = 20
KEPT_DAYS = 7
UNDER_WAY_SECONDS = 3600  # then all is over that was under way as a job was asked for
INSTANCE = "00000000-0000-0000-0000-000000000000"  # the account that what is nobody's belongs to
Handler = Callable[[Mapping[str, Any]], None]


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
    due_at: Mapped[datetime] = mapped_column(Moment)
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(Moment)


TABLE: Any = Job.__table__
# A job that was tried and says neither what it failed of nor when it ended is being carried out.
QUEUE = leases.Queue(
    TABLE,
    TABLE.c.attempts,
    waiting=TABLE.c.status == "pending",
    once_taken={TABLE.c.last_error: None, TABLE.c.finished_at: None},
)
Line = Callable[[threading.Event, threading.Event], None]

_handlers: dict[str, tuple[Handler, int]] = {}
_mailing: set[str] = set()
_periods: dict[str, int] = {}
_lines: dict[str, Line] = {}
_running: dict[str, sa.Row[Any]] = {}
_renewing = threading.Lock()


def job(
    kind: str, *, attempts: int = ATTEMPTS, mails: bool = False
) -> Callable[[Handler], Handler]:
    """Register what carries out jobs of a kind, how often it is tried, and whether it mails."""

    def register(handler: Handler) -> Handler:
        _handlers[kind] = (handler, attempts)
        if mails:
            _mailing.add(kind)
        return handler

    return register


def every(seconds: int, kind: str) -> Callable[[Handler], Handler]:
    """Register what is to be done again and again, by one worker of all."""

    def register(handler: Handler) -> Handler:
        _periods[kind] = seconds
        return job(kind)(handler)

    return register


def line(name: str) -> Callable[[Line], Line]:
    """Register another line of work: called with (stop, woken), it works until stop is set.

    `woken` is set when there may be something to do; it should look now and then anyway.
    """

    def register(work: Line) -> Line:
        _lines[name] = work
        return work

    return register


def kinds() -> list[str]:
    """Every kind of job, by name."""
    return sorted(_handlers)


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
    if kind not in _handlers:
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
        wakeups.send(url)


redis_client = wakeups.redis_client  # for those who keep counters in it


def queue_answers() -> bool:
    """Whether Redis answers."""
    return wakeups.answers(config.current().redis_url)


def run_due(which: Any = None, stop: threading.Event | None = None) -> int:
    """Carry out what is due, or that of it, until nothing is or `stop` is set.

    Returns how many jobs were tried.
    """
    tried, stop = 0, stop or threading.Event()
    try:
        while seen := _look(which):
            for one in seen:
                if stop.is_set():  # what would be begun now would be cut off
                    return tried
                # Claimed one by one: a lease must not run out while other jobs take their time.
                row = _claim(one.account_id, one.id)
                if row:
                    _run(row)
                    tried += 1
    finally:
        # A connection that broke must not stay with a worker that goes on.
        db.db.session.remove()
    return tried


def _look(which: Any = None) -> Sequence[sa.Row[Any]]:
    return leases.look(QUEUE, LARGEST_LOOK, where=which)


def _claim(account_id: str, id: str) -> sa.Row[Any] | None:
    wanted = (Job.kind, Job.payload)
    taken = leases.claim(QUEUE, account_id, [id], LEASE_SECONDS, *wanted)
    return taken[0] if taken else None


def _run(row: sa.Row[Any]) -> None:
    # A kind unknown here may be known to the newer release that is just being rolled out.
    handler, attempts = _handlers.get(row.kind, (_unknown, ATTEMPTS))
    if row.attempts > attempts and row.kind not in _periods:  # nobody who tried it lived to tell
        _change(row, _given_up("WorkerLost"))
        return
    # What is the whole instance's looks over all accounts.
    whose = tenancy.ACROSS if row.account_id == INSTANCE else row.account_id
    try:
        with _under_way(row), tenancy.about(whose):
            handler({"account_id": row.account_id, **row.payload})
    except Exception as error:  # noqa: BLE001 - whatever a job fails of is recorded
        log.warning("job failed", kind=row.kind, job=row.id, error=type(error).__name__)
        tried = min(row.attempts, 4) if row.kind in _periods else row.attempts
        _change(row, _after_failure(tried, attempts, error))
    else:
        _change(row, _after_success(row.kind))


@contextmanager
def _under_way(row: sa.Row[Any]) -> Iterator[None]:
    with _renewing:
        _running[row.id] = row
    try:
        yield
    finally:
        with _renewing:  # or its lease would be renewed after its end
            _running.pop(row.id, None)


def _unknown(payload: Mapping[str, Any]) -> None:
    raise LookupError("no job of this kind")


def _after_success(kind: str) -> dict[str, Any]:
    if kind in _periods:
        return {"finished_at": clock.now(), "due_at": database_now(_periods[kind])}
    # What it was about may be personal, and nobody asks for it any more.
    return {"status": "done", "payload": {}, "finished_at": clock.now(), "last_error": None}


def _after_failure(tried: int, attempts: int, error: Exception) -> dict[str, Any]:
    name = type(error).__name__  # its message may quote personal data
    if tried >= attempts:
        return _given_up(name)
    delay = min(FIRST_RETRY_SECONDS * 4 ** (tried - 1), LAST_RETRY_SECONDS)
    return {"last_error": name, "due_at": database_now(delay)}


def _given_up(reason: str) -> dict[str, Any]:
    return {"status": "failed", "last_error": reason, "finished_at": clock.now()}


def _change(row: sa.Row[Any], changes: Mapping[str, Any]) -> None:
    # The attempt is part of the key: a worker whose lease ran out changes nothing any more.
    mine = (Job.account_id == row.account_id, Job.id == row.id, Job.attempts == row.attempts)
    with db.transaction() as session:
        session.execute(sa.update(Job).where(*mine).values(**changes))


def retry(account_id: str, id: str) -> None:
    """Ask again for a job that was given up. Raises NotFound where there is none."""
    given_up = (Job.account_id == account_id, Job.id == id, Job.status == "failed")
    with db.transaction() as session:
        # As a new one: a worker that still has to do with the old one changes nothing of it.
        taken = sa.delete(Job).where(*given_up).returning(Job.kind, Job.payload)
        row = session.execute(taken).first()
        if row is None or row.kind not in _handlers:
            raise NotFound("There is no such job that was given up.")
        enqueue(row.kind, row.payload, account_id=account_id)


def forget(texts: Iterable[str], account_ids: Iterable[str]) -> None:
    """Forget jobs of accounts that were given up and tell one of these texts, in whatever case."""
    payload = sa.func.lower(sa.cast(TABLE.c.payload, sa.Text))
    told = [payload.contains(json.dumps(text).lower(), autoescape=True) for text in texts]
    given_up = (TABLE.c.account_id.in_(account_ids), TABLE.c.status == "failed")
    with db.transaction() as session:
        session.execute(sa.delete(TABLE).where(*given_up, sa.or_(sa.false(), *told)))


def plan() -> None:
    """See to it that each periodic job has its row."""
    present = sa.select(Job.kind).where(Job.account_id == INSTANCE, Job.kind.in_(_periods))
    with db.transaction() as session:
        known = set(session.scalars(present))
        make: Any = sqlite if engines.running().dialect.name == "sqlite" else postgresql
        for kind in sorted(_periods.keys() - known):
            # The id is the kind's: of two workers that start at once, one makes the row.
            id = str(uuid5(NAMESPACE_URL, f"atrium:{kind}"))
            new = {"account_id": INSTANCE, "id": id, "kind": kind, "payload": {}}
            row = make.insert(Job).values(**new, due_at=database_now())
            session.execute(row.on_conflict_do_nothing())


def were_planned() -> bool:
    """Whether there has ever been a worker."""
    mine = sa.exists().where(Job.account_id == INSTANCE, Job.kind == "jobs.purge")
    return bool(db.connection().scalar(sa.select(mine)))


@every(3600, "jobs.purge")
def purge(payload: Mapping[str, Any]) -> None:
    """Forget jobs that were over long ago."""
    old = TABLE.c.due_at < database_now(-KEPT_DAYS * 86400)
    db.purge(TABLE, TABLE.c.status != "pending", old)


def sweep_seconds() -> float:
    """How long a line of work waits for a wake-up before it looks anyway."""
    return SWEEP_SECONDS if config.current().redis_url else EMBEDDED_SWEEP_SECONDS


@line("jobs")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Carry out due jobs until told to stop, but for those that mail."""
    _work(stop, woken, Job.kind.not_in(_mailing))


@line("mails")
def mail(stop: threading.Event, woken: threading.Event) -> None:
    """Carry out due jobs that mail until told to stop."""
    _work(stop, woken, Job.kind.in_(_mailing))


@line("leases")
def keep(stop: threading.Event, woken: threading.Event) -> None:
    """Have jobs that take long stay with this process, as long as it lives."""
    while not stop.wait(LEASE_SECONDS / 4):
        with _renewing:
            for row in _running.values():
                _renew(row)


def _renew(row: sa.Row[Any]) -> None:
    try:
        _change(row, {"due_at": database_now(LEASE_SECONDS)})
    except SQLAlchemyError as error:  # the next time may be in time, too
        log.warning("a lease is not renewed", job=row.id, error=type(error).__name__)
        db.db.session.remove()


def _work(stop: threading.Event, woken: threading.Event, which: sa.ColumnElement[bool]) -> None:
    planned = False
    while not stop.is_set():
        woken.clear()
        try:
            if not planned:
                plan()
                planned = True
            run_due(which, stop)
        except Exception as error:  # noqa: BLE001 - the worker outlives its database
            log.warning("worker cannot reach its jobs", error=type(error).__name__)
        woken.wait(sweep_seconds())


def serve(stop: threading.Event) -> None:
    """Be a worker process until told to stop: every line of work, and a listener for wake-ups."""
    running = [_start(name, work, stop) for name, work in _lines.items()]
    url = config.current().redis_url
    if url:
        wakeups.listen(url, stop)
    else:
        stop.wait()
    wakeups.woken()
    end = time.monotonic() + STOP_SECONDS
    for thread in running:
        thread.join(max(0, end - time.monotonic()))


def _start(name: str, work: Line, stop: threading.Event) -> threading.Thread:
    app, woken = current_app._get_current_object(), threading.Event()  # type: ignore[attr-defined]

    def run() -> None:
        wakeups.lines.append(woken)
        with app.app_context():
            work(stop, woken)
        wakeups.lines.remove(woken)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
