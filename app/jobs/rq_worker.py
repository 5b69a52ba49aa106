"""The RQ workers of a worker process: one for each queue, with a thread for each job.

They take jobs as RQ's stock command does, but run them in this process instead of forking one for
each. Beside them run RQ's scheduler, and a sweep that enqueues what is due and has no job. While
Redis is away, the loops of this process look for due rows themselves.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import structlog
from flask import Flask, current_app
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker, worker_registration
from rq.exceptions import DeserializationError, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from sqlalchemy.exc import SQLAlchemyError

from app import db
from app.jobs import queue, rq_queues
from app.jobs.rq_queues import DEFAULT, EXTENSIONS, LONG, MAIL, WEBHOOKS, WORKFLOWS, Task

log = structlog.get_logger()

JOBS_AT_ONCE = {MAIL: 1, WEBHOOKS: 64, WORKFLOWS: 64, DEFAULT: 1, LONG: 4, EXTENSIONS: 4}
IDLE_SECONDS = 2  # without a job, a worker looks so often whether to stop
HEARTBEAT_SECONDS = 10
JOB_TTL = 90  # without a heartbeat, a job counts as abandoned
MAINTENANCE_SECONDS = 60
SWEEP_KEY = "atrium:sweep"
SCHEDULER_SECONDS = 1
LOCK_SECONDS = 5  # a scheduler tries so often to take over queues of one that stopped
AGAIN_SECONDS = 1
STOP_SECONDS = 5


class Worker(SimpleWorker):
    """Takes jobs of one queue, and runs each in a thread with the application's context."""

    death_penalty_class = TimerDeathPenalty
    max_connection_wait_time = 1.0

    def __init__(self, url: str, queue_name: str, app: Flask, stop: threading.Event) -> None:
        connection = _connection(url)
        only = Queue(queue_name, connection=connection, serializer=JSONSerializer)
        name = f"{socket.gethostname()}.{os.getpid()}.{queue_name}.{uuid4().hex[:8]}"
        super().__init__(
            [only],
            name,
            connection=connection,
            serializer=JSONSerializer,
            maintenance_interval=MAINTENANCE_SECONDS,
        )
        self._app, self._stop = app, stop
        self._free = threading.Semaphore(JOBS_AT_ONCE[queue_name])
        self._next_heartbeat = 0.0

    def _install_signal_handlers(self) -> None:
        pass  # the process has its own

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Return the next job. Raises StopRequested."""
        while not self._stop.is_set():
            self._keep_known()
            if not self._free.acquire(timeout=IDLE_SECONDS):
                continue
            found = super().dequeue_job_and_maintain_ttl(timeout, IDLE_SECONDS)
            if found and not self._stop.is_set():
                return found
            self._free.release()
            if found:  # taken while the worker was told to stop: put it back
                job, (only,) = found[0], self.queues
                only.push_job_id(job.id, at_front=True)
                self.connection.lrem(only.intermediate_queue_key, 1, job.id)
        raise StopRequested

    def _keep_known(self) -> None:
        if time.monotonic() < self._next_heartbeat:
            return
        self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
        with suppress(RedisError):  # seen when the next job is taken
            # `rq info` knows no queue that nothing was ever put in, nor its workers.
            self.connection.sadd(Queue.redis_queues_keys, *self.queue_keys())
            if not self.connection.sismember(self.redis_workers_keys, self.key):  # emptied
                self.connection.hset(self.key, mapping=self.serialize())
                worker_registration.register(self)
            self.heartbeat()
            for execution in list(self.executions.values()):
                self.maintain_heartbeats(execution.job, execution)

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        """Return how long a job may be without a heartbeat."""
        return JOB_TTL

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job in a thread."""
        execution = self.prepare_execution(job)
        threading.Thread(target=self._run, args=[job, queue, execution], daemon=True).start()

    def perform_job(self, job: Job, queue: Queue, execution: Execution) -> bool:
        """Run a job; whether it succeeded. Others than ours fail: RQ would run any function."""
        if _is_ours(job):
            return super().perform_job(job, queue, execution)
        self.connection.lrem(queue.intermediate_queue_key, 1, job.id)
        self.handle_job_failure(job, queue, exc_string="No task of Atrium.", execution=execution)
        return False

    def _run(self, job: Job, queue: Queue, execution: Execution) -> None:
        try:
            with self._app.app_context():
                self.perform_job(job, queue, execution)
                db.db.session.remove()
        except RedisError as error:  # the rows know what was done
            log.warning("queue unreachable", error=type(error).__name__)
        finally:
            self.executions.pop(execution.id, None)
            self._free.release()


def _is_ours(job: Job) -> bool:
    try:
        return job.func_name == rq_queues.TASK
    except DeserializationError:  # not as JSON
        return False


@contextmanager
def running(url: str, stop: threading.Event, sweep_seconds: float) -> Iterator[None]:
    """Run what RQ hands out inside the block, until `stop` is set."""
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    logging.getLogger("rq").addHandler(_StructlogHandler())  # else RQ adds its own
    _sweep(url)

    def start(work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=[url, app, stop, *args], daemon=True)
        thread.start()
        return thread

    threads = [start(_work, name) for name in JOBS_AT_ONCE]
    threads += [start(_schedule), start(_sweep_until, sweep_seconds)]
    try:
        yield
    finally:
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))
        rq_queues.flush(url)
        queue.uses_rq.clear()


def _connection(url: str) -> Redis:
    return Redis.from_url(url, socket_connect_timeout=2)


def _work(url: str, app: Flask, stop: threading.Event, queue_name: str) -> None:
    while not stop.is_set():
        with suppress(RedisError):  # logged by the sweep
            Worker(url, queue_name, app, stop).work(logging_level="ERROR")
        stop.wait(AGAIN_SECONDS)


def _schedule(url: str, app: Flask, stop: threading.Event) -> None:
    while not stop.is_set():
        scheduler: Any = RQScheduler(
            rq_queues.NAMES,
            connection=_connection(url),
            serializer=JSONSerializer,
            logging_level="ERROR",
        )
        with suppress(RedisError):
            scheduler.register_birth()
            next_try = 0.0
            while not stop.wait(SCHEDULER_SECONDS):
                if (
                    len(scheduler.acquired_locks) < len(rq_queues.NAMES)
                    and time.monotonic() > next_try
                ):
                    scheduler.acquire_locks()
                    next_try = time.monotonic() + LOCK_SECONDS
                scheduler.heartbeat()
                if scheduler.acquired_locks:
                    scheduler.enqueue_scheduled_jobs()
            scheduler.stop()
        stop.wait(AGAIN_SECONDS)


def _sweep_until(url: str, app: Flask, stop: threading.Event, seconds: float) -> None:
    with app.app_context():
        while not stop.wait(seconds):
            _sweep(url)


def _sweep(url: str) -> None:
    """Enqueue what is due and has no job, and note whether Redis is there."""
    try:
        is_mine = rq_queues.redis_client(url).set(SWEEP_KEY, "", nx=True, px=1000)
        queue.uses_rq.set()
        if is_mine:
            runners = queue.RUNNERS.items()
            due = [Task(name, ids) for name, runner in runners for ids in runner.due()]
            rq_queues.enqueue(url, [(task, None) for task in due])
    except RedisError as error:
        queue.uses_rq.clear()
        log.warning("queue unreachable, the worker goes on without", error=type(error).__name__)
    except SQLAlchemyError as error:
        log.warning("sweep failed", error=type(error).__name__)
    finally:
        db.db.session.remove()


class _StructlogHandler(logging.Handler):
    """Forwards RQ's log to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("rq", message=record.getMessage().partition("\n")[0])
