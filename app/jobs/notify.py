"""How workers hear of new work at once: by RQ where there is Redis. Nothing depends on it.

What is due stands in SQL, and every worker looks there every few seconds. A wake-up only makes it
look now. So Redis may be down, emptied or restarted at any moment.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import lru_cache
from typing import Any

import structlog

log = structlog.get_logger()

QUEUE = "atrium"
WAKE = "app.jobs.notify.woken"
ENOUGH_WAITING = 8
PAUSE_SECONDS = 0.02
LISTEN_AGAIN_SECONDS = 2

lines: list[threading.Event] = []
"""What the lines of work of this process wait for."""


def woken() -> None:
    """Let every line of work of this process look for what is due."""
    for line in lines:
        line.set()


def send(url: str) -> None:
    """Wake a worker soon; costs the caller nothing, and needs no Redis that answers."""
    _sender(url, os.getpid()).asked.set()


@lru_cache
def _sender(url: str, process: int) -> Sender:
    # By process: threads do not survive a fork.
    return Sender(url)


class Sender:
    """A thread that sends wake-ups, many asked for at once as one."""

    def __init__(self, url: str) -> None:
        self.asked = threading.Event()
        self._queue = _queue(url)
        self._pause = threading.Event()
        threading.Thread(target=self._send_all, name="wake-ups", daemon=True).start()

    def _send_all(self) -> None:
        while True:
            self.asked.wait()
            self.asked.clear()
            self._send()
            self._pause.wait(PAUSE_SECONDS)

    def _send(self) -> None:
        try:
            # Whoever takes one that still waits will see this work, too.
            if self._queue.count < ENOUGH_WAITING:
                self._queue.enqueue(WAKE, result_ttl=0, failure_ttl=60, job_timeout=-1)
        except Exception as error:  # noqa: BLE001 - the row is there, and the sweep finds it
            log.warning("queue unreachable", error=type(error).__name__)


def listen(url: str, stop: threading.Event) -> None:
    """Take wake-ups from the queue until told to stop."""
    from redis.exceptions import RedisError

    while not stop.is_set():
        try:
            _listener(url, stop).work(logging_level="ERROR")
        except RedisError as error:
            log.warning("queue unreachable, the sweep goes on", error=type(error).__name__)
        stop.wait(LISTEN_AGAIN_SECONDS)


class _Retelling(logging.Handler):
    """What RQ tells, in our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("queue listener", told=record.getMessage().partition("\n")[0])


def _listener(url: str, stop: threading.Event) -> Any:
    from redis import Redis
    from rq import SimpleWorker
    from rq.exceptions import StopRequested
    from rq.serializers import JSONSerializer

    class Listener(SimpleWorker):
        """RQ's worker without a fork per job, and without signal handlers of its own."""

        max_connection_wait_time = 1.0

        def _install_signal_handlers(self) -> None:
            pass

        def heartbeat(self, *args: Any, **options: Any) -> None:
            if stop.is_set():
                raise StopRequested
            super().heartbeat(*args, **options)

    told = logging.getLogger("rq.worker")
    if not told.handlers:  # RQ would give it its own
        told.addHandler(_Retelling())
    connection = Redis.from_url(url, socket_connect_timeout=2)
    # RQ waits 15 seconds less than this for a job; then it looks whether it is to stop.
    seconds = 17
    return Listener(
        [_queue(url)], connection=connection, serializer=JSONSerializer, worker_ttl=seconds
    )


@lru_cache
def _queue(url: str) -> Any:
    from rq import Queue  # only where there is a queue: RQ takes memory
    from rq.serializers import JSONSerializer

    return Queue(QUEUE, connection=redis_client(url), serializer=JSONSerializer)


def answers(url: str) -> bool:
    """Whether Redis answers."""
    from redis.exceptions import RedisError

    try:
        return bool(redis_client(url).ping())
    except RedisError:
        return False


@lru_cache
def redis_client(url: str) -> Any:
    """A client that gives up soon, so that no request waits for a Redis that is down."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 0)
    return Redis.from_url(url, socket_connect_timeout=0.3, socket_timeout=0.5, retry=retry)
