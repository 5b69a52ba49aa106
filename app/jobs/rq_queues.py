"""RQ's queues: each job names rows in SQL, which are the truth.

A lost job costs a few seconds, until a sweep of `rq_worker.py` finds the row; one that runs twice
finds nothing to do. So Redis may be down, emptied or restarted at any time. What is announced
several times before a worker takes it is one job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import structlog

from app import clock

if TYPE_CHECKING:
    from redis import Redis
    from rq import Queue
    from rq.job import Job

log = structlog.get_logger()

NAMES = ("mail", "webhooks", "workflows", "default", "long", "extensions")
MAIL, WEBHOOKS, WORKFLOWS, DEFAULT, LONG, EXTENSIONS = NAMES
TASK = "app.jobs.tasks.run"
WAITING_KEY = "atrium:waiting:{}"
WAITING_SECONDS = 10  # then a job counts as lost
FAILURE_SECONDS = 7 * 86400
PAUSE_SECONDS = 0.02
MAX_PENDING = 10_000  # announcements of one process while Redis is away


class Task(NamedTuple):
    """A job of RQ. In the queues `webhooks` and `workflows` it has the id of an account, in the
    others those of an account and a job.
    """

    queue: str
    ids: tuple[str, ...]

    @property
    def key(self) -> str:
        return "-".join((self.queue, *self.ids))


Due = tuple[Task, datetime | None]
"""A task, and when to run it; None for now."""


@dataclass(frozen=True)
class Announcement:
    """Has RQ run a task in so many seconds when it is called; never blocks, even without Redis."""

    url: str
    task: Task
    seconds: float

    def __call__(self) -> None:
        """Hand the task to the thread that enqueues."""
        at = clock.now() + timedelta(seconds=self.seconds) if self.seconds > 0 else None
        _sender(self.url, os.getpid()).add(self.task, at)


@lru_cache
def _sender(url: str, process: int) -> Sender:
    # Per process, as threads do not survive a fork.
    return Sender(url)


class Sender:
    """A thread that enqueues tasks; combines those announced within a moment."""

    def __init__(self, url: str) -> None:
        self._url, self._pending = url, dict[Due, None]()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._requested = threading.Event()
        threading.Thread(target=self._send_all, name="rq-enqueue", daemon=True).start()

    def add(self, task: Task, at: datetime | None) -> None:
        """Have a task enqueued, at a time if there is one."""
        second = at and at.replace(microsecond=0) + timedelta(seconds=1)
        with self._lock:
            if len(self._pending) < MAX_PENDING:  # the sweep finds the others
                self._pending[task, second] = None
        self._requested.set()

    def send(self) -> None:
        """Enqueue what is pending, and wait until that is done."""
        with self._sending:
            with self._lock:
                pending, self._pending = list(self._pending), {}
            try:
                enqueue(self._url, pending)
            except Exception as error:  # noqa: BLE001 - the sweep finds the rows
                log.warning("queue unreachable", error=type(error).__name__)

    def _send_all(self) -> None:
        pause = threading.Event()
        while True:
            self._requested.wait()
            self._requested.clear()
            self.send()
            pause.wait(PAUSE_SECONDS)


def flush(url: str) -> None:
    """Wait until all that this process has announced is enqueued."""
    _sender(url, os.getpid()).send()


def enqueue(url: str, tasks: Iterable[Due]) -> None:
    """Enqueue tasks that have no waiting job, those with a time for then. Raises RedisError."""
    connection = redis_client(url)
    now, later = list[Task](), list[tuple[Task, datetime]]()
    for task, at in tasks:
        if at is None:
            now.append(task)
        else:
            later.append((task, at))
    with connection.pipeline(transaction=False) as pipeline:
        for task in now:
            pipeline.set(WAITING_KEY.format(task.key), "", nx=True, ex=WAITING_SECONDS)
        is_new = pipeline.execute()
        for task, has_none in zip(now, is_new, strict=True):
            if has_none:
                queue(url, task.queue).enqueue_job(_job(url, task), pipeline=pipeline)
        for task, at in later:
            # One job for each task and second.
            job = _job(url, task, f"{task.key}-{at:%Y%m%dT%H%M%S}")
            queue(url, task.queue).schedule_job(job, at, pipeline=pipeline)
        pipeline.execute()


def _job(url: str, task: Task, id: str | None = None) -> Job:
    return queue(url, task.queue).create_job(
        TASK,
        (task.queue, *task.ids),
        job_id=id,
        timeout=-1,  # jobs renew leases of their rows
        result_ttl=0,
        failure_ttl=FAILURE_SECONDS,
    )


def take(url: str, task: Task) -> None:
    """Note that a job took a task: what is announced from now on needs another one."""
    from redis.exceptions import RedisError

    try:
        redis_client(url).delete(WAITING_KEY.format(task.key))
    except RedisError as error:  # it expires soon
        log.warning("queue unreachable", error=type(error).__name__)


@lru_cache
def queue(url: str, name: str) -> Queue:
    from rq import Queue  # imported only with Redis, as RQ takes memory
    from rq.serializers import JSONSerializer

    return Queue(name, connection=redis_client(url), serializer=JSONSerializer)


def is_redis_up(url: str) -> bool:
    """Whether Redis responds."""
    from redis.exceptions import RedisError

    try:
        return bool(redis_client(url).ping())
    except RedisError:
        return False


@lru_cache
def redis_client(url: str) -> Redis:
    """Return a client with short timeouts, so that no request waits for a Redis that is down."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=0.3, socket_timeout=0.5, retry=retry)
