"""A worker process: lines of work, each a thread.

One is for jobs, one for those that mail, as a mail server may keep them waiting, and others are
added by features. A worker claims due jobs under a lease of the database's clock, which it renews
as long as it lives; one that dies lets it run out, and another takes over. Jobs are therefore run
at least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import sqlalchemy as sa
import structlog
from flask import current_app
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db
from app.context import tenancy
from app.db import engine
from app.db.functions import database_now
from app.jobs import INSTANCE, KINDS, QUEUE, Job, Kind, leases, notify

log = structlog.get_logger()

LEASE_SECONDS = 120
LARGEST_LOOK = 20
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
PERIODIC_RETRY = 4  # as if it was the fourth: these count all that they were ever tried
SWEEP_SECONDS = 3
EMBEDDED_SWEEP_SECONDS = 0.5
STOP_SECONDS = 20
Line = Callable[[threading.Event, threading.Event], None]


def _unknown(payload: Mapping[str, Any]) -> None:
    raise LookupError("no job of this kind")


# A kind unknown here may be known to the newer release that is just being rolled out.
UNKNOWN = Kind(_unknown)
_lines: dict[str, Line] = {}
_running: dict[str, sa.Row[Any]] = {}
_renewing = threading.Lock()


def line(name: str) -> Callable[[Line], Line]:
    """Register another line of work: called with (stop, woken), it works until stop is set.

    `woken` is set when there may be something to do; it should look now and then anyway.
    """

    def register(work: Line) -> Line:
        _lines[name] = work
        return work

    return register


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
    kind = KINDS.get(row.kind, UNKNOWN)
    if row.attempts > kind.attempts and not kind.period:  # nobody who tried it lived to tell
        _change(row, _given_up("WorkerLost"))
        return
    # What is the whole instance's looks over all accounts.
    whose = tenancy.ACROSS if row.account_id == INSTANCE else row.account_id
    try:
        with _under_way(row), tenancy.scoped_to(whose):
            kind.handler({"account_id": row.account_id, **row.payload})
    except Exception as error:  # noqa: BLE001 - whatever a job fails of is recorded
        log.warning("job failed", kind=row.kind, job=row.id, error=type(error).__name__)
        _change(row, _after_failure(kind, row.attempts, error))
    else:
        _change(row, _after_success(kind))


@contextmanager
def _under_way(row: sa.Row[Any]) -> Iterator[None]:
    with _renewing:
        _running[row.id] = row
    try:
        yield
    finally:
        with _renewing:  # or its lease would be renewed after its end
            _running.pop(row.id, None)


def _after_success(kind: Kind) -> dict[str, Any]:
    if kind.period:
        return {"finished_at": clock.now(), "due_at": database_now(kind.period)}
    # What it was about may be personal, and nobody asks for it any more.
    return {"status": "done", "payload": {}, "finished_at": clock.now(), "last_error": None}


def _after_failure(kind: Kind, tried: int, error: Exception) -> dict[str, Any]:
    name = type(error).__name__  # its message may quote personal data
    if kind.period:  # which is never given up
        tried = min(tried, PERIODIC_RETRY)
    elif tried >= kind.attempts:
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


def plan() -> None:
    """See to it that each periodic job has its row, and one that is carried out."""
    periodic = {name for name, kind in KINDS.items() if kind.period}
    mine = (Job.account_id == INSTANCE, Job.kind.in_(periodic), Job.status == "pending")
    with db.transaction() as session:
        known = set(session.scalars(sa.select(Job.kind).where(*mine)))
        make: Any = sqlite if engine.current_engine().dialect.name == "sqlite" else postgresql
        for kind in sorted(periodic - known):
            # The id is the kind's: of two workers that start at once, one makes the row.
            id = str(uuid5(NAMESPACE_URL, f"atrium:{kind}"))
            new = {"account_id": INSTANCE, "id": id, "kind": kind, "payload": {}}
            row = make.insert(Job).values(**new, due_at=database_now())
            # A worker of a former release, which does not know the kind, may have given it up.
            again = {"status": "pending", "due_at": database_now()}
            session.execute(
                row.on_conflict_do_update(
                    index_elements=["account_id", "id"],
                    set_=again,
                    where=Job.status == "failed",
                )
            )


def sweep_seconds() -> float:
    """How long a line of work waits for a wake-up before it looks anyway."""
    return SWEEP_SECONDS if config.current().redis_url else EMBEDDED_SWEEP_SECONDS


@line("jobs")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Carry out due jobs until told to stop, but for those that mail."""
    _work(stop, woken, Job.kind.not_in(_mailing()))


@line("mails")
def mail(stop: threading.Event, woken: threading.Event) -> None:
    """Carry out due jobs that mail until told to stop."""
    _work(stop, woken, Job.kind.in_(_mailing()))


def _mailing() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.mails]


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
        notify.listen(url, stop)
    else:
        stop.wait()
    notify.woken()
    end = time.monotonic() + STOP_SECONDS
    for thread in running:
        thread.join(max(0, end - time.monotonic()))


def _start(name: str, work: Line, stop: threading.Event) -> threading.Thread:
    app, woken = current_app._get_current_object(), threading.Event()  # type: ignore[attr-defined]

    def run() -> None:
        notify.lines.append(woken)
        with app.app_context():
            work(stop, woken)
        notify.lines.remove(woken)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
