"""Wakes workers through RQ, if there is Redis.

Nothing depends on it: jobs are in SQL, and every worker looks there every few seconds. A wake-up
only makes it look now, so Redis may be down, flushed or restarted at any time.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from redis import Redis
    from rq import Queue, SimpleWorker

log = structlog.get_logger()

QUEUE = "atrium"
WAKE = "app.jobs.notify.woken"
MAX_QUEUED = 8
PAUSE_SECONDS = 0.02
LISTEN_AGAIN_SECONDS = 2

wake_events: list[threading.Event] = []
"""The events that this process's worker loops wait for."""


def woken() -> None:
    """Wake every worker loop of this process."""
    for event in wake_events:
        event.set()


def send(url: str) -> None:
    """Wake a worker soon; never blocks, even if Redis is down."""
    _sender(url, os.getpid()).requested.set()


@lru_cache
def _sender(url: str, process: int) -> Sender:
    # Per process, as threads do not survive a fork.
    return Sender(url)


class Sender:
    """A thread that sends wake-ups; combines concurrent ones."""

    def __init__(self, url: str) -> None:
        self.requested = threading.Event()
        self._queue = _queue(url)
        self._pause = threading.Event()
        threading.Thread(target=self._send_all, name="wake-ups", daemon=True).start()

    def _send_all(self) -> None:
        while True:
            self.requested.wait()
            self.requested.clear()
            self._send()
            self._pause.wait(PAUSE_SECONDS)

    def _send(self) -> None:
        try:
            # The worker that takes a queued wake-up will see this job, too.
            if self._queue.count < MAX_QUEUED:
                self._queue.enqueue(WAKE, result_ttl=0, failure_ttl=60, job_timeout=-1)
        except Exception as error:  # noqa: BLE001 - the sweep finds the job
            log.warning("queue unreachable", error=type(error).__name__)


def listen(url: str, stop: threading.Event) -> None:
    """Receive wake-ups until `stop` is set."""
    from redis.exceptions import RedisError

    while not stop.is_set():
        try:
            _listener(url, stop).work(logging_level="ERROR")
        except RedisError as error:
            log.warning("queue unreachable, the sweep goes on", error=type(error).__name__)
        stop.wait(LISTEN_AGAIN_SECONDS)


class _StructlogHandler(logging.Handler):
    """Forwards RQ's log to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("queue listener", message=record.getMessage().partition("\n")[0])


def _listener(url: str, stop: threading.Event) -> SimpleWorker:
    from redis import Redis
    from rq import SimpleWorker
    from rq.exceptions import StopRequested
    from rq.serializers import JSONSerializer

    class Listener(SimpleWorker):
        """RQ's worker without a fork per job, and without signal handlers of its own."""

        max_connection_wait_time = 1.0

        def _install_signal_handlers(self) -> None:
            pass

        def heartbeat(self, *args: object, **options: object) -> None:
            if stop.is_set():
                raise StopRequested
            super().heartbeat(*args, **options)  # type: ignore[arg-type]

    logger = logging.getLogger("rq.worker")
    if not logger.handlers:  # else RQ adds its own
        logger.addHandler(_StructlogHandler())
    connection = Redis.from_url(url, socket_connect_timeout=2)
    # RQ blocks for 15 seconds less than its TTL, then checks whether to stop.
    return Listener([_queue(url)], connection=connection, serializer=JSONSerializer, worker_ttl=17)


@lru_cache
def _queue(url: str) -> Queue:
    from rq import Queue  # imported only with Redis, as RQ takes memory
    from rq.serializers import JSONSerializer

    return Queue(QUEUE, connection=redis_client(url), serializer=JSONSerializer)


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
