"""With Redis, RQ hands out all background work, and no loss of Redis loses any of it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from flask import Flask
from rq import Queue
from rq.job import Job as RQJob
from rq.serializers import JSONSerializer

from app import create_app, db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.jobs import Job, rq_queues, worker
from app.webhooks import dispatch
from tests.builders import PASSWORD, Caller, Cast, make_collection
from tests.mailbox import outbox
from tests.processes import Worker, forked, started, stock_command
from tests.project import PROGRAMS
from tests.receivers import Receiver
from tests.services import Redis
from tests.test_jobs import until
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import create, instance, make_workflow, start

BODY = {"account": "umbra", "email": "ann@umbra.example", "password": PASSWORD}
WAIT = {"name": "wait", "type": "wait_delay", "duration": "1s"}


@pytest.fixture
def server(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """A Redis of its own that the application uses."""
    with Redis(private=True) as found:
        settings = replace(app.extensions["atrium.config"], redis_url=found.url)
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        yield found
        jobs.redis_client(found.url).close()


@pytest.fixture
def environ(app: Flask, server: Redis) -> dict[str, str]:
    """The environment of a worker beside the application."""
    settings = app.extensions["atrium.config"]
    return {
        **os.environ,
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(settings.instance_dir),
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_REDIS_URL": server.url,
        "REDIS_URL": server.url,
        "SERVICE_WEBHOOK_RETRY_DELAYS": "2,2,2",
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of all workers."""
    return tmp_path / "worker.log"


@contextmanager
def working(environ: dict[str, str], log: Path) -> Iterator[Worker]:
    """A worker's process."""
    process = Worker(environ, log)
    try:
        yield process
    finally:
        process.stop()


def stock_worker(environ: dict[str, str], log: Path) -> Any:
    """RQ's own worker, started by the command of docs/deployment.md."""
    return started(stock_command(), environ, log)


def rq_info(url: str, *options: str) -> str:
    """What `rq info` prints."""
    command = [str(PROGRAMS / "rq"), "info", "--url", url, "--raw", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def idle_workers(server: Redis) -> int:
    """How many workers without a job `rq info` shows."""
    return rq_info(server.url, "--only-workers").count(" idle")


def queues(server: Redis) -> dict[str, Queue]:
    """RQ's queues by name."""
    connection = redis.Redis.from_url(server.url)
    return {
        name: Queue(name, connection=connection, serializer=JSONSerializer)
        for name in rq_queues.NAMES
    }


def job_rows(app: Flask) -> list[Any]:
    """The jobs that are not periodic."""
    with app.app_context():
        found = db.connection().execute(sa.select(Job.__table__)).all()
        db.db.session.remove()
    return [row for row in found if row.kind not in jobs.KINDS or not jobs.KINDS[row.kind].period]


def hooked(app: Flask, cast: Cast) -> Receiver:
    """A receiver of the changes of Alice's posts."""
    make_collection(cast.root)
    receiver = Receiver()
    make_webhook(cast.alice, receiver.url)
    return receiver


def test_rq_worker_runs_all_kinds_of_jobs(
    app: Flask, cast: Cast, anyone: Caller, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    flow = make_workflow(cast.alice, [create("a"), WAIT, create("b")])
    periodic = [name for name in jobs.kinds() if jobs.KINDS[name].period]
    with working(environ, log):
        start(cast.alice, flow)
        assert anyone.post("auth/register", BODY).status_code == 201
        export = cast.alice.post("account/export", {"passphrase": "a long enough passphrase"})
        assert until(lambda: len(receiver.requests) == 2), log.read_text()
        assert until(lambda: outbox(app))
        path = f"account/export/{export.json['id']}"
        assert until(lambda: cast.alice.get(path).json["status"] == "ready"), log.read_text()
        scheduled = queues(server)["default"].scheduled_job_registry
        assert until(lambda: scheduled.count == len(periodic))
        assert until(lambda: idle_workers(server) == len(rq_queues.NAMES))
        found = rq_info(server.url, "--only-queues")
        known = [line.split()[1] for line in found.splitlines() if line.startswith("queue")]
        assert sorted(known) == sorted(rq_queues.NAMES)
    receiver.close()


def test_rq_stock_worker_runs_all_kinds_of_jobs(
    app: Flask, cast: Cast, anyone: Caller, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    flow = make_workflow(cast.alice, [create("a"), WAIT, create("b")])
    with stock_worker(environ, log):
        assert until(lambda: "Listening" in log.read_text())
        start(cast.alice, flow)
        assert anyone.post("auth/register", BODY).status_code == 201
        assert until(lambda: len(receiver.requests) == 2, 40), log.read_text()
        assert until(lambda: outbox(app), 40)
    receiver.close()
    assert not any(queue.failed_job_registry.count for queue in queues(server).values())


def test_rq_emptied_redis_loses_no_job(
    app: Flask, cast: Cast, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    assert cast.alice.post("records/posts", {"title": "before"}).status_code == 201
    with redis.Redis.from_url(server.url) as connection:
        assert until(lambda: queues(server)["webhooks"].count == 1)
        connection.flushall()
    with forked_worker(environ, 0.5):
        assert until(lambda: len(receiver.requests) == 1)
        with redis.Redis.from_url(server.url) as connection:
            connection.flushall()
        assert cast.alice.post("records/posts", {"title": "after"}).status_code == 201
        assert until(lambda: len(receiver.requests) == 2)
        assert until(lambda: idle_workers(server) == len(rq_queues.NAMES))
    receiver.close()


def test_rq_worker_without_redis_goes_on_and_returns(
    app: Flask, cast: Cast, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    with forked_worker(environ, 0.5):
        assert until(lambda: idle_workers(server) == len(rq_queues.NAMES))
        server.kill()
        assert cast.alice.post("records/posts", {"title": "away"}).status_code == 201
        assert until(lambda: len(receiver.requests) == 1)
        server.start()
        assert until(lambda: idle_workers(server) == len(rq_queues.NAMES))
        assert cast.alice.post("records/posts", {"title": "back"}).status_code == 201
        assert until(lambda: len(receiver.requests) == 2)
    receiver.close()


def test_rq_due_deliveries_of_account_are_one_job(app: Flask, cast: Cast, server: Redis) -> None:
    receiver = hooked(app, cast)
    for number in range(20):
        assert cast.alice.post("records/posts", {"title": f"{number}"}).status_code == 201
    queue = queues(server)["webhooks"]
    assert until(lambda: queue.count)
    time.sleep(10 * rq_queues.PAUSE_SECONDS)
    (job,) = queue.jobs
    assert list(job.args) == ["webhooks", cast.alice.account_id]
    receiver.close()


def test_rq_delivery_retry_is_a_scheduled_job(
    app: Flask, cast: Cast, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    receiver.answer = lambda request: (500, "not now")
    scheduled = queues(server)["webhooks"].scheduled_job_registry
    # The sweep would find it a moment later, too.
    with forked_worker(environ):
        assert cast.alice.post("records/posts", {"title": "x"}).status_code == 201
        assert until(lambda: len(receiver.requests) == 1)
        assert until(lambda: scheduled.count == 1)
        (id,) = scheduled.get_job_ids()
        assert id.startswith(f"webhooks-{cast.alice.account_id}-")
        receiver.answer = lambda request: (200, "ok")
        assert until(lambda: len(receiver.requests) == 2)
        assert until(lambda: scheduled.count == 0)
    receiver.close()


def test_rq_workflow_delays_and_schedules_are_scheduled_jobs(
    app: Flask, cast: Cast, environ: dict[str, str], server: Redis
) -> None:
    make_collection(cast.root)
    make_workflow(cast.alice, [], {"type": "schedule", "cron": "0 4 * * *"})
    scheduled = queues(server)["workflows"].scheduled_job_registry
    assert until(lambda: scheduled.count == 1)
    flow = make_workflow(cast.alice, [create("a"), WAIT, create("b")])
    with forked_worker(environ):
        id = start(cast.alice, flow)
        assert until(lambda: scheduled.count == 2)
        assert until(lambda: instance(cast.alice, id)["status"] == "completed")


def test_rq_failed_job_has_no_data(
    app: Flask, server: Redis, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.setitem(jobs.KINDS, "test", jobs.Kind(fail, 1))
    with forked_worker(environ, kind=fail):
        with app.app_context(), db.transaction():
            jobs.enqueue("test", {"email": "ada@x.example"}, account_id=SYSTEM_ACCOUNT_ID)
        failed = queues(server)["default"].failed_job_registry
        assert until(lambda: failed.count == 1)
    (id,) = failed.get_job_ids()
    job = RQJob.fetch(id, connection=failed.connection, serializer=JSONSerializer)
    told = f"{job.to_dict()} {job.latest_result().exc_string}"
    assert "JobFailed: ('test', 'OSError')" in told
    assert "ada@x.example" not in told
    (row,) = [row for row in job_rows(app) if row.kind == "test"]
    assert (row.status, row.last_error) == ("failed", "OSError")


def test_rq_worker_refuses_foreign_functions(
    app: Flask, environ: dict[str, str], log: Path, server: Redis
) -> None:
    """Who can write to Redis cannot run code here."""
    queue = queues(server)["default"]
    pickled = Queue("default", connection=queue.connection)
    made = [to.enqueue("os.mkdir", str(log.parent / "made")) for to in (queue, pickled)]
    with working(environ, log):
        assert until(lambda: {job.get_status() for job in made} == {"failed"})
    assert not (log.parent / "made").exists()
    assert "Traceback" not in log.read_text()


def test_rq_jobs_waiting_at_start_get_dispatcher_of_worker(
    app: Flask, cast: Cast, environ: dict[str, str], tmp_path: Path
) -> None:
    receiver = hooked(app, cast)
    assert cast.alice.post("records/posts", {"title": "x"}).status_code == 201
    made = tmp_path / "dispatchers"
    process = forked(_serve_late, environ, made)
    try:
        assert until(lambda: len(receiver.requests) == 1)
    finally:
        process.kill()
        process.join()
    receiver.close()
    assert made.read_text() == "by deliveries\n"


def _serve_late(environ: dict[str, str], made: Path) -> None:
    """A worker whose RQ begins before its loops; it notes the threads that dispatch."""
    from app.jobs import rq_worker

    class Noted(dispatch.Dispatcher):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            with made.open("a") as file:
                file.write(f"by {threading.current_thread().name}\n")

    @contextmanager
    def begin_first(*args: Any) -> Iterator[None]:
        with running(*args):
            time.sleep(0.5)
            yield

    running = rq_worker.running
    rq_worker.running, dispatch.Dispatcher = begin_first, Noted  # type: ignore[assignment, misc]
    _serve(environ, 3600, None)


def test_rq_stopped_worker_leaves_its_jobs_to_others(
    app: Flask, cast: Cast, environ: dict[str, str], log: Path, server: Redis
) -> None:
    receiver = hooked(app, cast)
    with working(environ, log) as process:
        assert until(lambda: idle_workers(server) == len(rq_queues.NAMES))
        process.stop()
        assert idle_workers(server) == 0
        assert cast.alice.post("records/posts", {"title": "x"}).status_code == 201
        process.start()
        assert until(lambda: len(receiver.requests) == 1)
    receiver.close()
    assert not any(queue.failed_job_registry.count for queue in queues(server).values())


@contextmanager
def forked_worker(
    environ: dict[str, str], sweep_seconds: float = 3600, kind: Callable[..., None] | None = None
) -> Iterator[None]:
    """A worker that sweeps so often, and runs jobs of a kind `test`."""
    process = forked(_serve, environ, sweep_seconds, kind)
    try:
        yield
    finally:
        process.kill()
        process.join()


def _serve(environ: dict[str, str], sweep_seconds: float, kind: Callable[..., None] | None) -> None:
    from app.jobs import rq_worker

    os.environ.update(environ)
    worker.SWEEP_SECONDS = sweep_seconds  # type: ignore[assignment]
    rq_worker.HEARTBEAT_SECONDS = 1
    if kind:
        jobs.KINDS["test"] = jobs.Kind(kind, 1)
    with create_app().app_context():
        worker.serve(threading.Event())


def fail(payload: Mapping[str, Any]) -> None:
    """A kind of job that fails."""
    raise OSError(payload["email"])
