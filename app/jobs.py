"""The one door to background work: a row in SQL is the truth, Redis only wakes a worker.

`enqueue` writes the row in the caller's transaction, so there is work exactly when there was the
change that asked for it. A worker claims due rows under a lease of the database's clock; a worker
that dies lets its lease run out, and another takes over. Jobs are therefore run at least once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
import structlog
from flask import current_app
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db

log = structlog.get_logger()

LEASE_SECONDS = 120
LARGEST_LOOK = 20
ATTEMPTS = 8
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
QUEUE = "atrium"
Handler = Callable[[Mapping[str, Any]], None]


class Job(db.Base):
    """A piece of work that is due at a time."""

    __tablename__ = "jobs"
    __table_args__ = (sa.Index("ix_jobs_due", "status", "due_at"),)

    account_id: Mapped[str] = mapped_column(db.Id, primary_key=True)
    id: Mapped[str] = mapped_column(db.Id, primary_key=True, default=db.new_id)
    kind: Mapped[str] = mapped_column(db.Text)
    payload: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    status: Mapped[str] = mapped_column(db.Text, default="pending")  # then done or failed
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[datetime] = mapped_column(db.Moment)
    last_error: Mapped[str | None] = mapped_column(db.Text)
    created_at: Mapped[datetime] = mapped_column(db.Moment, default=clock.now)
    finished_at: Mapped[datetime | None] = mapped_column(db.Moment)


_handlers: dict[str, tuple[Handler, int]] = {}


def job(kind: str, *, attempts: int = ATTEMPTS) -> Callable[[Handler], Handler]:
    """Register what carries out jobs of a kind, and how often it is tried."""

    def register(handler: Handler) -> Handler:
        _handlers[kind] = (handler, attempts)
        return handler

    return register


def enqueue(kind: str, payload: Mapping[str, Any], *, account_id: str) -> None:
    """Ask for work, as part of the open transaction."""
    if kind not in _handlers:
        raise LookupError(f"no job of kind {kind}")
    new = sa.insert(Job).values(
        account_id=account_id, kind=kind, payload=dict(payload), due_at=db.database_now()
    )
    db.connection().execute(new)
    db.on_commit(wake)


def wake() -> None:
    """Tell a worker that there is work. A lost wake-up is found by the sweep."""
    url = config.current().redis_url
    if not url:
        return
    try:
        _queue(url).enqueue("app.jobs.run_due", result_ttl=0, failure_ttl=60, job_timeout=-1)
    except Exception as error:  # noqa: BLE001 - the row is there, and the sweep finds it
        log.warning("queue unreachable", error=type(error).__name__)


def queue_answers() -> bool:
    """Whether Redis answers."""
    from redis.exceptions import RedisError

    try:
        return bool(redis_client(config.current().redis_url).ping())
    except RedisError:
        return False


@lru_cache
def _queue(url: str) -> Any:
    from rq import Queue  # only where there is a queue: RQ takes memory
    from rq.serializers import JSONSerializer

    return Queue(QUEUE, connection=redis_client(url), serializer=JSONSerializer)


@lru_cache
def redis_client(url: str) -> Any:
    """A client that gives up soon, so that no request waits for a Redis that is down."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=0.3, socket_timeout=0.5, retry=retry)


def run_due() -> int:
    """Carry out what is due, until nothing is. Returns how many jobs were tried."""
    tried = 0
    try:
        while seen := _look():
            for account_id, id in seen:
                # Claimed one by one: a lease must not run out while other jobs take their time.
                row = _claim(account_id, id)
                if row:
                    _run(row)
                    tried += 1
    finally:
        # A connection that broke must not stay with a worker that goes on.
        db.db.session.remove()
    return tried


def _due() -> sa.ColumnElement[bool]:
    return sa.and_(Job.status == "pending", Job.due_at <= db.database_now())


def _look() -> Sequence[sa.Row[str, str]]:
    # Unlocked and over all accounts; each row is then claimed under its own account.
    seen = sa.select(Job.account_id, Job.id).where(_due()).order_by(Job.due_at).limit(LARGEST_LOOK)
    return db.connection().execute(seen).all()


def _claim(account_id: str, id: str) -> sa.Row[Any] | None:
    lease = (
        sa.update(Job)
        .where(Job.account_id == account_id, Job.id == id, _due())
        .values(attempts=Job.attempts + 1, due_at=db.database_now(LEASE_SECONDS))
        .returning(Job.account_id, Job.id, Job.kind, Job.payload, Job.attempts)
    )
    with db.transaction() as session:
        return session.execute(lease).first()


def _run(row: sa.Row[Any]) -> None:
    # A kind unknown here may be known to the newer release that is just being rolled out.
    handler, attempts = _handlers.get(row.kind, (_unknown, ATTEMPTS))
    if row.attempts > attempts:  # nobody who tried it lived to tell
        _finish(row, _given_up("WorkerLost"))
        return
    try:
        handler({"account_id": row.account_id, **row.payload})
    except Exception as error:  # noqa: BLE001 - whatever a job fails of is recorded
        log.warning("job failed", kind=row.kind, job=row.id, error=type(error).__name__)
        _finish(row, _after_failure(row.attempts, attempts, error))
    else:
        _finish(row, {"status": "done", "finished_at": clock.now(), "last_error": None})


def _unknown(payload: Mapping[str, Any]) -> None:
    raise LookupError("no job of this kind")


def _after_failure(tried: int, attempts: int, error: Exception) -> dict[str, Any]:
    name = type(error).__name__  # its message may quote personal data
    if tried >= attempts:
        return _given_up(name)
    delay = min(FIRST_RETRY_SECONDS * 4 ** (tried - 1), LAST_RETRY_SECONDS)
    return {"last_error": name, "due_at": db.database_now(delay)}


def _given_up(reason: str) -> dict[str, Any]:
    return {"status": "failed", "last_error": reason, "finished_at": clock.now()}


def _finish(row: sa.Row[Any], changes: Mapping[str, Any]) -> None:
    # The attempt is part of the key: a worker whose lease ran out changes nothing any more.
    mine = (Job.account_id == row.account_id, Job.id == row.id, Job.attempts == row.attempts)
    with db.transaction() as session:
        session.execute(sa.update(Job).where(*mine).values(**changes))


def work(poll_seconds: float, stop: threading.Event) -> None:
    """Carry out due jobs until told to stop: the embedded worker, and the sweep beside RQ."""
    while not stop.is_set():
        try:
            tried = run_due()
        except Exception as error:  # noqa: BLE001 - the worker outlives its database
            log.warning("worker cannot reach its jobs", error=type(error).__name__)
            tried = 0
        if not tried:
            stop.wait(poll_seconds)


def serve(stop: threading.Event) -> None:
    """Be a worker process: RQ's with a sweep where Redis is set, else the embedded one."""
    url = config.current().redis_url
    if not url:
        work(0.5, stop)
        return
    app = current_app._get_current_object()  # type: ignore[attr-defined]

    def sweep() -> None:
        with app.app_context():
            work(3, stop)

    threading.Thread(target=sweep, daemon=True).start()
    _serve_queue(url, stop)


def _serve_queue(url: str, stop: threading.Event) -> None:
    from redis.exceptions import RedisError
    from rq import SimpleWorker
    from rq.serializers import JSONSerializer

    while not stop.is_set():
        try:
            worker = SimpleWorker(
                [_queue(url)], connection=_blocking_client(url), serializer=JSONSerializer
            )
            worker.work(logging_level="WARNING")
            return
        except RedisError as error:
            log.warning("queue unreachable, the sweep goes on", error=type(error).__name__)
            stop.wait(2)


def _blocking_client(url: str) -> Any:
    from redis import Redis

    return Redis.from_url(url, socket_connect_timeout=2)
