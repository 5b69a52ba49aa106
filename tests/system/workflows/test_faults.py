"""Workers are killed in the middle of steps: what was done stays done, once, and nothing sticks."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections import definitions
from app.ids import new_id
from tests.builders import Caller, make_collection
from tests.conftest import WHOLE
from tests.receivers import Receiver
from tests.services import Redis
from tests.system.workflows.faults import start_workers, stopping_in
from tests.workflows.running import (
    action,
    create,
    instance,
    let_pass,
    make_workflow,
    start,
    statuses,
    work,
)

STEPS = ("a", "b", "c", "d", "e", "f")
KILLS = 100


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def six_steps(alice: Caller, receiver: Receiver) -> dict[str, Any]:
    """A workflow that makes records and sends requests by turns."""

    def step(name: str) -> dict[str, Any]:
        if name in "be":
            return action(name, "send_webhook", url=receiver.url, body=name)
        if name == "d":
            return action(name, "query_records", collection="posts")
        return create(name, f"{name} {{{{ trigger.n }}}}")

    return make_workflow(alice, [step(name) for name in STEPS])


def test_workflow_instance_completes_after_kill_in_each_step(
    app: Flask, root: Caller, alice: Caller, receiver: Receiver
) -> None:
    make_collection(root)
    id = start(alice, six_steps(alice, receiver), {"n": 1})
    for index, name in enumerate(STEPS):
        with stopping_in(app, name):
            pass
        found = instance(alice, id)
        # What came before it is done; it is not, and nobody else has it before the lease is over.
        assert found["status"] == "running"
        done = [step for step, status in statuses(found) if status == "completed"]
        assert done == list(STEPS[:index])
        let_pass(app, 60)
    work(app)
    found = instance(alice, id)
    assert (found["status"], found["error_message"]) == ("completed", None)
    records = alice.get("records/posts?sort=id").json["items"]
    assert [one["title"] for one in records] == ["a 1", "c 1", "f 1"]
    tries = Counter(one["step_name"] for one in found["step_logs"])
    assert tries == {"a": 1, "b": 2, "c": 1, "d": 1, "e": 2, "f": 1}
    keys = Counter((one.body, one.headers["idempotency-key"]) for one in receiver.requests)
    assert sorted(keys.values()) == [2, 2]
    assert {body for body, _ in keys} == {b"b", b"e"}


@pytest.fixture
def redis_url(database: str) -> Iterator[str]:
    """A Redis of its own, which may be emptied; with SQLite none."""
    if database == "sqlite":
        yield ""
        return
    server = Redis()
    server.start()
    yield server.url
    server.stop()


@pytest.mark.slow
def test_workflow_instances_complete_after_hundred_kills(
    app: Flask, redis_url: str, root: Caller, alice: Caller, receiver: Receiver, tmp_path: Path
) -> None:
    """The embedded default on SQLite; on PostgreSQL RQ's own worker too, and an emptied Redis."""
    make_collection(root)
    workflow, chance = six_steps(alice, receiver), random.Random(7)
    workers, ids = start_workers(app, tmp_path, redis_url), list[str]()
    absent = list[Any]()
    try:
        for n in range(KILLS):
            before = len(receiver.requests)
            ids += [start(alice, workflow, {"n": 3 * n + one}) for one in range(3)]
            # Work that lost its job waits for a worker of Atrium's own.
            end = time.monotonic() + (5 if absent else 60)
            while len(receiver.requests) == before and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.2))
            if redis_url and chance.random() < 0.2:
                redis.Redis.from_url(redis_url).flushall()
            while absent:
                absent.pop().start()
            absent.append(chance.choice(workers))
            absent[0].kill()
            if absent == workers or chance.random() < 0.5:  # or the other works alone for a while
                absent.pop().start()
        while absent:
            absent.pop().start()
        end = time.monotonic() + 120
        while alice.get("workflow-instances?status=completed&limit=1").json["total"] < len(ids):
            assert time.monotonic() < end, (tmp_path / "worker.log").read_text()[-3000:]
            time.sleep(0.5)
    finally:
        for worker in workers:
            if worker not in absent:
                worker.kill()
    if redis_url:
        assert "Job OK" in (tmp_path / "rq.log").read_text()
    titles = Counter(one["title"] for one in every_post(alice))
    assert titles == {f"{name} {n}": 1 for name in "acf" for n in range(3 * KILLS)}
    for id in ids:
        told = Counter(statuses(instance(alice, id)))
        assert all(told[name, "completed"] == 1 for name in STEPS)
    keys = Counter((one.headers["idempotency-key"]) for one in receiver.requests)
    assert len(keys) == 2 * len(ids)


def every_post(alice: Caller) -> list[dict[str, Any]]:
    """All records, page by page."""
    pages = range(1, 3 * 3 * KILLS // 100 + 2)
    return [
        one
        for page in pages
        for one in alice.get(f"records/posts?limit=100&sort=id&page={page}").json["items"]
    ]


@WHOLE
def test_workflow_walk_over_records_with_kills_runs_for_each_once(
    app: Flask, redis_url: str, root: Caller, alice: Caller, tmp_path: Path, whole: bool
) -> None:
    """Of 100,000 records, with ten kills; others are created and deleted meanwhile."""
    count, kills = (100_000, 10) if whole else (150, 3)
    make_collection(root, schema=[{"name": "n", "type": "number"}])
    fill(app, alice, count)
    step = action(
        "change",
        "update_record",
        collection="posts",
        record_id="{{ item.id }}",
        data={"n": "{{ item.n + 1 }}"},
    )
    walk = {"name": "walk", "type": "for_each", "collection": "posts", "steps": [step]}
    id = start(alice, make_workflow(alice, [walk]))
    last = alice.get("records/posts?sort=-id&limit=3").json["items"]
    workers, chance = start_workers(app, tmp_path, redis_url), random.Random(7)
    begun = time.monotonic()

    def done() -> int:
        found = instance(alice, id)
        assert found["status"] in ("pending", "running", "completed"), found["error_message"]
        return (
            count if found["status"] == "completed" else (found["progress"] or {"done": 0})["done"]
        )

    def wait_for(number: int) -> None:
        end = time.monotonic() + 60 + count / 20
        while done() < number:
            assert time.monotonic() < end, (tmp_path / "worker.log").read_text()[-3000:]
            time.sleep(0.02)

    try:
        for kill in range(kills):
            wait_for(count * (kill + 1) // (kills + 2))
            time.sleep(chance.uniform(0, 0.1))
            for worker in workers:
                worker.crash()
            if kill == kills // 2:
                assert alice.delete(f"records/posts/{last[0]['id']}").status_code == 204
                assert alice.post("records/posts", {"n": 100}).status_code == 201
        wait_for(count)
    finally:
        for worker in workers:
            worker.kill()
    found = instance(alice, id)
    assert (found["status"], found["error_message"]) == ("completed", None)
    output = found["context"]["steps"]["walk"]["output"]
    assert output == {"count": count - 1, "failed": 0, "errors": []}
    groups = alice.get("records/posts/aggregate?functions=count()&group_by=n").json["results"]
    assert groups == [{"n": 1, "count": count - 1}, {"n": 100, "count": 1}]
    sys.stdout.write(f"{count} records in {time.monotonic() - begun:.0f} s\n")


def fill(app: Flask, alice: Caller, count: int) -> None:
    """Put many records into the table at once."""
    with app.app_context(), db.transaction():
        table, now = definitions.get("posts").table, clock.now()
        same = {"account_id": alice.account_id, "created_at": now, "updated_at": now, "n": 0}
        for begin in range(0, count, 5000):
            rows = [{**same, "id": new_id()} for _ in range(begin, min(count, begin + 5000))]
            db.connection().execute(sa.insert(table), rows)
