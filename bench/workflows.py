"""Speed of workflows on PostgreSQL: `python -m bench.workflows [instances] [stored]`.

Instances of five steps on records are carried out by a worker's dispatcher, beside many that are
over or wait, and by a worker process that RQ hands them out to; then the database is asked how it
finds what is due.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from flask import Flask

from app import db, jobs
from app.context import tenancy
from app.db.functions import database_now
from app.ids import new_id
from app.jobs import leases
from app.jobs.rq_queues import WORKFLOWS
from app.workflows.dispatch import Dispatcher
from app.workflows.models import INSTANCES, QUEUE
from bench import machine
from bench.product import application
from bench.webhooks import worker
from tests import builders, conftest, services
from tests.workflows.running import action, create, make_workflow, start

FIELDS = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
WARMING = 40  # a worker makes its statements once


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def five_steps(owner: builders.Caller) -> dict[str, object]:
    """A workflow of three new records, a change and a deletion."""
    id = "{{ steps.one.output.id }}"
    steps = [
        create("one"),
        create("two", "{{ steps.one.output.title }}"),
        action("three", "update_record", collection="posts", record_id=id, data={"n": 3}),
        create("four"),
        action("five", "delete_record", collection="posts", record_id=id),
    ]
    return make_workflow(owner, steps)


def begun(app: Flask, owner: builders.Caller, number: int) -> None:
    """Insert due instances."""
    start(owner, five_steps(owner))
    with app.app_context(), db.transaction():
        due = sa.select(INSTANCES).where(INSTANCES.c.due_at.is_not(None))
        row = db.connection().execute(due).mappings().one()
        copies = [{**row, "id": new_id()} for _ in range(number - 1)]
        db.connection().execute(sa.insert(INSTANCES), copies)


def store(app: Flask, number: int) -> None:
    """Insert further instances: 90 % finished, 10 % waiting."""
    with app.app_context():
        row = db.connection().execute(sa.select(INSTANCES).limit(1)).mappings().one()
        later = db.connection().scalar(sa.select(database_now(86400)))
        for first in range(0, number, 5000):
            rows = []
            for place in range(first, min(first + 5000, number)):
                waits = place % 10 == 0
                state = {"status": "waiting" if waits else "completed"}
                state["due_at"] = later if waits else None
                rows.append({**row, "id": new_id(), **state})
            with db.transaction():
                db.connection().execute(sa.insert(INSTANCES), rows)
        db.db.session.remove()


def carried_out(app: Flask, account_id: str) -> tuple[float, float]:
    """Wall-clock and CPU seconds until nothing of an account is due."""
    mine = (INSTANCES.c.account_id == account_id, INSTANCES.c.status.in_(("pending", "running")))
    left = sa.select(INSTANCES.c.id).where(*mine).limit(1)
    with app.app_context():
        woken = threading.Event()
        dispatcher = Dispatcher(woken)
        at, cpu = time.perf_counter(), time.process_time()
        while db.connection().scalar(left):
            db.db.session.remove()
            dispatcher.turn()
            woken.wait(0.5)
            woken.clear()
        return time.perf_counter() - at, time.process_time() - cpu


def carried_out_by_rq(app: Flask, owner: builders.Caller) -> float:
    """Seconds from the announcement until a worker process has nothing of an account left."""
    account_id = owner.account_id
    mine = (INSTANCES.c.account_id == account_id, INSTANCES.c.status.in_(("pending", "running")))
    left = sa.select(INSTANCES.c.id).where(*mine).limit(1)
    with app.app_context():
        jobs.announce(WORKFLOWS, account_id)
        at = time.perf_counter()
        while db.connection().scalar(left):
            db.db.session.remove()
            time.sleep(0.05)
        return time.perf_counter() - at


def explain(app: Flask) -> list[str]:
    """The query plan of the search for due instances."""
    due = leases.due_statement(QUEUE, 100, INSTANCES.c.status)
    with app.app_context(), db.transaction() as session:
        with tenancy.as_owner():
            session.execute(sa.text("ANALYZE workflow_instances"))
        text = str(due.compile(db.db.engine, compile_kwargs={"literal_binds": True}))
        return [row[0] for row in session.execute(sa.text(f"EXPLAIN (ANALYZE) {text}"))]


def main() -> None:
    """Print the rates and the plan."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    stored = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    server, redis = services.Postgres(), services.Redis(private=True)
    server.start()
    redis.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = conftest.settings_for("postgresql", Path(folder), redis_url=redis.url)
            app = application(replace(settings, secret_key=secrets.token_hex(32)))
            cast = builders.make_cast(app)
            builders.make_collection(cast.root, schema=FIELDS)
            begun(app, cast.alice, WARMING)
            carried_out(app, cast.alice.account_id)
            begun(app, cast.alice, number)
            report(app, cast.alice, number, "")
            with worker(app, Path(folder)):
                for many in (WARMING, number):
                    begun(app, cast.alice, many)
                    seconds = carried_out_by_rq(app, cast.alice)
                say(f"{number / seconds:.0f} instances/s by a worker process and RQ")
            store(app, stored)
            with app.app_context(), db.transaction() as session:
                again = sa.update(INSTANCES).where(INSTANCES.c.status == "completed")
                some = sa.select(INSTANCES.c.id).where(INSTANCES.c.due_at.is_(None)).limit(number)
                fresh = {"status": "pending", "position": "{}", "context": '{"trigger": {}}'}
                chosen = again.where(INSTANCES.c.id.in_(some))
                session.execute(chosen.values(**fresh, due_at=database_now()))
            report(app, cast.alice, number, f" beside {stored:,} stored ones")
            for line in explain(app):
                say(f"  {line}")
            machine.say(server.url)
    finally:
        redis.stop()
        server.stop()


def report(app: Flask, owner: builders.Caller, number: int, beside: str) -> None:
    """Run due instances and print the rate."""
    seconds, cpu = carried_out(app, owner.account_id)
    rate, by_cpu = number / seconds, number / cpu
    say(f"{rate:.0f} instances/s of five steps{beside} ({by_cpu:.0f} per second of CPU)")


if __name__ == "__main__":
    main()
