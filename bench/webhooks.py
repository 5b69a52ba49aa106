"""Speed of webhooks: `python -m bench.webhooks drain|hang|create [sqlite|postgresql] [number]`.

drain: a worker process delivers what is queued to a local receiver. hang: the same beside twenty
receivers that never answer. create: what one matching webhook adds to creating a record.
PostgreSQL comes with Redis and RQ, SQLite with the worker alone.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import clock, crypto, db
from app.webhooks import outbox
from app.webhooks.models import ATTEMPTS, DELIVERIES, Webhook
from bench.product import application
from tests import services
from tests.builders import Cast, make_cast, make_collection
from tests.conftest import settings_for
from tests.processes import environment, mebibytes, started
from tests.project import free_port

BATCH = 1000
HANGING = 20
STUCK_SECONDS = 60


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def receiver() -> Iterator[str]:
    """A receiver in a process of its own."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.receiver", str(port)])  # noqa: S603
    try:
        time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def received(url: str) -> list[float]:
    """(distinct deliveries, requests, first, last) as the receiver saw them."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        return [float(part) for part in answer.read().split()]


def await_all(url: str, number: int) -> None:
    """Wait for `number` deliveries. Raises TimeoutError if they stop arriving."""
    before, end = -1.0, 0.0
    while (found := received(url)[0]) < number:
        now = time.monotonic()
        if found > before:
            before, end = found, now + STUCK_SECONDS
        if now > end:
            raise TimeoutError(f"{found:.0f} of {number} came, and then no more")
        time.sleep(0.2)


def add_webhook(account_id: str, url: str) -> str:
    """Insert a webhook directly, without the API's checks."""
    with db.transaction() as session:
        webhook = Webhook(
            account_id=account_id,
            url=url,
            collection="posts",
            events=["create"],
            secret=crypto.encrypt("x"),
        )
        session.add(webhook)
        session.flush()
        return webhook.id


def queue_up(account_id: str, webhook_id: str, number: int) -> None:
    """Insert due deliveries."""
    text = '{"event":"records.create","record":{"title":"%s"}}' % ("x" * 500)
    for done in range(0, number, BATCH):
        with db.transaction():
            size = min(BATCH, number - done)
            event = "records.create"
            outbox.write([outbox.row(account_id, webhook_id, event, text) for _ in range(size)])


@contextmanager
def worker(app: Flask, folder: Path) -> Iterator[int]:
    """A worker process as an operator starts it; its process id."""
    settings = app.extensions["atrium.config"]
    env = environment(folder, SERVICE_DATABASE_URL=settings.database_url)
    env |= {"SERVICE_INSTANCE_DIR": str(settings.instance_dir)}
    env |= {"SERVICE_REDIS_URL": settings.redis_url}
    with started([*["flask", "--app", "wsgi", "worker"]], env, folder / "worker.log") as process:
        yield process.pid


def seconds_of_cpu(pid: int) -> float:
    """The CPU time that a process has used."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / 100


@dataclass(frozen=True)
class Drained:
    """The cost of delivering the queue."""

    distinct: int
    requests: int
    attempts: int
    waiting: int
    seconds: float
    cpu: float
    memory: float


def drained(app: Flask, cast: Cast, folder: Path, number: int) -> Drained:
    """Deliver `number` with one worker to a local receiver."""
    with receiver() as url:
        with app.app_context():
            account_id = cast.alice.account_id
            queue_up(account_id, add_webhook(account_id, url), number)
        with worker(app, folder) as pid:
            await_all(url, number)
            time.sleep(1)
            memory, cpu = mebibytes(pid, "VmHWM"), seconds_of_cpu(pid)
        distinct, requests, first, last = received(url)
    with app.app_context():
        kept = db.connection().scalar(sa.select(sa.func.count()).select_from(ATTEMPTS))
        left = sa.select(sa.func.count()).where(DELIVERIES.c.status != "delivered")
        waiting = db.connection().scalar(left)
    counts = (int(distinct), int(requests), kept or 0, waiting or 0)
    return Drained(*counts, last - first, cpu, memory)


def drain(app: Flask, cast: Cast, folder: Path, number: int) -> None:
    """Measure the rate and memory of one worker."""
    found = drained(app, cast, folder, number)
    rate = (found.distinct - 1) / found.seconds
    say(f"{found.distinct} delivered in {found.seconds:.1f} s: {rate:.0f}/s")
    say(f"{found.cpu:.1f} s of CPU, start included; peak {found.memory:.0f} MiB")
    say(f"{found.requests} requests, {found.attempts} attempts, {found.waiting} not delivered")


def hang(app: Flask, cast: Cast, folder: Path, number: int) -> None:
    """Measure the delay of healthy receivers, without and with twenty that never respond."""
    with receiver() as url, app.app_context():
        healthy = add_webhook(cast.alice.account_id, url)
        hanging = [add_webhook(cast.charlie.account_id, f"{url}/hang") for _ in range(HANGING)]
        with worker(app, folder):
            _p95(cast, healthy, 1)  # the worker has started
            say(f"p95 without: {_p95(cast, healthy, number) * 1000:.0f} ms")
            for webhook_id in hanging:
                queue_up(cast.charlie.account_id, webhook_id, 50)
            time.sleep(2)
            say(f"p95 beside {HANGING}: {_p95(cast, healthy, number) * 1000:.0f} ms")


def _p95(cast: Cast, webhook_id: str, number: int) -> float:
    account_id, since = cast.alice.account_id, clock.now()
    for _ in range(number):
        queue_up(account_id, webhook_id, 1)
        time.sleep(0.02)
    mine = (DELIVERIES.c.webhook_id == webhook_id, DELIVERIES.c.created_at >= since)
    chosen = sa.select(DELIVERIES.c.created_at, ATTEMPTS.c.attempted_at).where(
        *mine, ATTEMPTS.c.delivery_id == DELIVERIES.c.id
    )
    rows: Any = []
    while len(rows) < number:
        time.sleep(0.2)
        rows = db.connection().execute(chosen).all()
    waits = sorted((row.attempted_at - row.created_at).total_seconds() for row in rows)
    return waits[int(len(waits) * 0.95)]


def create(app: Flask, cast: Cast, folder: Path, number: int) -> None:
    """Measure the CPU time that a matching webhook adds to creating a record."""
    del folder

    make_collection(cast.root, "pages")
    body = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": ["create"]}
    cast.alice.post("webhooks", body)
    spent: dict[str, list[float]] = {"pages": [], "posts": []}
    # Interleaved, so that other load affects both alike.
    for _ in range(number):
        for collection, times in spent.items():
            before = time.process_time()
            assert cast.alice.post(f"records/{collection}", {"title": "x"}).status_code == 201  # noqa: S101
            times.append(time.process_time() - before)
    # The lower quartile: other load only adds time.
    without, with_one = (quantiles(times)[0] * 1000 for times in spent.values())
    say(f"create: {without:.3f} ms of CPU, {with_one - without:+.3f} ms with a webhook")


def main() -> None:
    """Run the benchmark named on the command line."""
    what, database = sys.argv[1], (sys.argv[2:] or ["postgresql"])[0]
    number = int((sys.argv[3:] or ["2000"])[0])
    logging.disable()
    folder = Path(tempfile.mkdtemp(prefix="atrium-bench-"))
    with services.Postgres(private=True) as server, services.Redis(private=True) as redis:
        settings = settings_for("sqlite", folder)
        if database == "postgresql":
            url = _driver(server.create_database(f"bench_{secrets.token_hex(4)}"))
            settings = settings_for("sqlite", folder, database_url=url, redis_url=redis.url)
        app = application(settings)
        cast = make_cast(app)
        make_collection(cast.root)
        {"drain": drain, "hang": hang, "create": create}[what](app, cast, folder, number)


def _driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg2://")


if __name__ == "__main__":
    main()
