"""A worker process: one thread per worker loop.

One loop runs jobs, one runs those that send mail (a mail server may be slow), and features add
their own. A worker claims due jobs under a lease by the database's clock, and renews it as long as
it lives. If it dies, the lease expires and another worker takes over: jobs run at least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()

LEASE_SECONDS = 120
BATCH_SIZE = 20
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
PERIODIC_RETRY = 4  # caps the delay: periodic jobs count attempts over all their runs
SWEEP_SECONDS = 3
EMBEDDED_SWEEP_SECONDS = 0.5
STOP_SECONDS = 20
Loop = Callable[[threading.Event, threading.Event], None]


def _unknown(payload: JSONMapping) -> None:
    raise LookupError("unknown kind of job")


# During a rolling upgrade the newer release may know the kind.
UNKNOWN = Kind(_unknown)
_loops: dict[str, Loop] = {}
_running: dict[str, sa.Row[Any]] = {}
_renewing = threading.Lock()


def loop(name: str) -> Callable[[Loop], Loop]:
    """Register a worker loop: called with (stop, woken), it runs until `stop` is set.

    `woken` is set when there may be work; the loop must also poll now and then.
    """

    def register(work: Loop) -> Loop:
        _loops[name] = work
        return work

    return register


def run_due(where: leases.Where = None, stop: threading.Event | None = None) -> int:
    """Run due jobs, or those that match, until none is left or `stop` is set.

    Returns the number of attempts.
    """
    attempts, stop = 0, stop or threading.Event()
    try:
        while due := _find_due(where):
            for job in due:
                if stop.is_set():  # a job started now would be cut off
                    return attempts
                # Claimed one by one: a lease must not expire while other jobs run.
                row = _claim(job.account_id, job.id)
                if row:
                    _run(row)
                    attempts += 1
    finally:
        # A worker must not keep a broken connection.
        db.db.session.remove()
    return attempts


def _find_due(where: leases.Where) -> Sequence[sa.Row[Any]]:
    return leases.find_due(QUEUE, BATCH_SIZE, where=where)


def _claim(account_id: str, id: str) -> sa.Row[Any] | None:
    claimed = leases.claim(QUEUE, account_id, [id], LEASE_SECONDS, Job.kind, Job.payload)
    return claimed[0] if claimed else None


def _run(row: sa.Row[Any]) -> None:
    kind = KINDS.get(row.kind, UNKNOWN)
    if row.attempts > kind.attempts and not kind.period:  # every worker that ran it died
        _change(row, _failed("WorkerLost"))
        return
    # Jobs of the whole instance work across accounts.
    scope = tenancy.ALL_ACCOUNTS if row.account_id == INSTANCE else row.account_id
    try:
        with _lease_renewed(row), tenancy.scoped_to(scope):
            kind.handler({"account_id": row.account_id, **row.payload})
    except Exception as error:  # noqa: BLE001 - recorded with the job
        log.warning("job failed", kind=row.kind, job=row.id, error=type(error).__name__)
        _change(row, _after_failure(kind, row.attempts, error))
    else:
        _change(row, _after_success(kind))


@contextmanager
def _lease_renewed(row: sa.Row[Any]) -> Iterator[None]:
    with _renewing:
        _running[row.id] = row
    try:
        yield
    finally:
        with _renewing:  # else its lease could be renewed after its end
            _running.pop(row.id, None)


def _after_success(kind: Kind) -> JSONObject:
    if kind.period:
        return {"finished_at": clock.now(), "due_at": database_now(kind.period)}
    # The payload may hold personal data, and nobody needs it any more.
    return {"status": "done", "payload": {}, "finished_at": clock.now(), "last_error": None}


def _after_failure(kind: Kind, attempts: int, error: Exception) -> JSONObject:
    name = type(error).__name__  # the message may quote personal data
    if kind.period:  # periodic jobs never fail for good
        attempts = min(attempts, PERIODIC_RETRY)
    elif attempts >= kind.attempts:
        return _failed(name)
    delay = min(FIRST_RETRY_SECONDS * 4 ** (attempts - 1), LAST_RETRY_SECONDS)
    return {"last_error": name, "due_at": database_now(delay)}


def _failed(reason: str) -> JSONObject:
    return {"status": "failed", "last_error": reason, "finished_at": clock.now()}


def _change(row: sa.Row[Any], changes: JSONMapping) -> None:
    with db.transaction():
        leases.change(QUEUE, row.account_id, [(row.id, row.attempts)], changes)


def schedule_periodic() -> None:
    """Insert missing rows of periodic jobs, and reset failed ones."""
    periodic = {name for name, kind in KINDS.items() if kind.period}
    pending = (Job.account_id == INSTANCE, Job.kind.in_(periodic), Job.status == "pending")
    with db.transaction() as session:
        scheduled = set(session.scalars(sa.select(Job.kind).where(*pending)))
        is_sqlite = engine.current_engine().dialect.name == "sqlite"
        insert = sqlite.insert if is_sqlite else postgresql.insert
        for kind in sorted(periodic - scheduled):
            # The id derives from the kind: if two workers start at once, one inserts the row.
            id = str(uuid5(NAMESPACE_URL, f"atrium:{kind}"))
            new = {"account_id": INSTANCE, "id": id, "kind": kind, "payload": {}}
            row = insert(Job).values(**new, due_at=database_now())
            # A worker of an older release, which does not know the kind, may have failed it.
            reset = {"status": "pending", "due_at": database_now()}
            session.execute(
                row.on_conflict_do_update(
                    index_elements=["account_id", "id"],
                    set_=reset,
                    where=Job.status == "failed",
                )
            )


def sweep_seconds() -> float:
    """Return how long a worker loop waits for a wake-up before it polls."""
    return SWEEP_SECONDS if config.current().redis_url else EMBEDDED_SWEEP_SECONDS


@loop("jobs")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Run due jobs, except those that send mail, until `stop` is set."""
    _work(stop, woken, Job.kind.not_in(_mailing()))


@loop("mails")
def mail(stop: threading.Event, woken: threading.Event) -> None:
    """Run due jobs that send mail until `stop` is set."""
    _work(stop, woken, Job.kind.in_(_mailing()))


def _mailing() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.mails]


@loop("leases")
def renew_leases(stop: threading.Event, woken: threading.Event) -> None:
    """Renew the leases of this process's running jobs until `stop` is set."""
    while not stop.wait(LEASE_SECONDS / 4):
        with _renewing:
            for row in _running.values():
                _renew(row)


def _renew(row: sa.Row[Any]) -> None:
    try:
        _change(row, {"due_at": database_now(LEASE_SECONDS)})
    except SQLAlchemyError as error:  # the next renewal may still be in time
        log.warning("a lease is not renewed", job=row.id, error=type(error).__name__)
        db.db.session.remove()


def _work(stop: threading.Event, woken: threading.Event, where: sa.ColumnElement[bool]) -> None:
    is_scheduled = False
    while not stop.is_set():
        woken.clear()
        try:
            if not is_scheduled:
                schedule_periodic()
                is_scheduled = True
            run_due(where, stop)
        except Exception as error:  # noqa: BLE001 - the worker outlives its database
            log.warning("worker cannot reach its jobs", error=type(error).__name__)
        woken.wait(sweep_seconds())


def serve(stop: threading.Event) -> None:
    """Run every worker loop, and listen for wake-ups, until `stop` is set."""
    threads = [_start(name, work, stop) for name, work in _loops.items()]
    url = config.current().redis_url
    if url:
        notify.listen(url, stop)
    else:
        stop.wait()
    notify.woken()
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def _start(name: str, work: Loop, stop: threading.Event) -> threading.Thread:
    app, woken = current_app._get_current_object(), threading.Event()  # type: ignore[attr-defined]

    def run() -> None:
        notify.wake_events.append(woken)
        with app.app_context():
            work(stop, woken)
        notify.wake_events.remove(woken)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
