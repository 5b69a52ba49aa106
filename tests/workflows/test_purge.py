"""How many run at once, and what goes when it is over, deleted or closed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.context import tenancy
from app.db.functions import database_now
from app.ids import first_id, new_id
from app.jobs import leases, worker
from app.workflows import dispatch, purge, service
from app.workflows.engine import queue
from app.workflows.models import (
    INSTANCES,
    LOGS,
    QUEUE,
    SCHEDULES,
    SUBSCRIPTIONS,
    VERSIONS,
    Workflow,
)
from tests.builders import Caller, Cast, make_collection
from tests.workflows.running import create, make_workflow, ran, start, work

WAIT = {"name": "w", "type": "wait_event", "event": "records.delete", "timeout": "1h"}
TABLES = (INSTANCES, LOGS, SCHEDULES, SUBSCRIPTIONS, VERSIONS, Workflow.__table__)


def counts(app: Flask) -> list[int]:
    """How many rows each table has."""
    with app.app_context():
        counted = [sa.select(sa.func.count()).select_from(table) for table in TABLES]
        found = [db.connection().scalar(one) or 0 for one in counted]
        db.db.session.remove()
    return found


def test_workflow_concurrency_limit_per_account(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, workflow_concurrency=2)
    workflow = make_workflow(cast.alice, [create("a")])
    other = make_workflow(cast.charlie, [create("a")])
    ids = [start(cast.alice, workflow) for _ in range(5)]
    start(cast.charlie, other)
    try:
        with app.app_context():
            due = queue.look(set())
            claimed = {id: len(queue.claim(id, rows, 10)) for id, rows in due.items()}
            assert claimed == {cast.alice.account_id: 2, cast.charlie.account_id: 1}
            again = queue.look(set())[cast.alice.account_id]
            assert (len(again), queue.claim(cast.alice.account_id, again, 10)) == (3, [])
            # A worker that died leaves its instances, which take no further room.
            db.connection().execute(
                sa.update(INSTANCES)
                .where(INSTANCES.c.status == "running")
                .values(due_at=database_now(-1))
            )
            db.db.session.remove()
        work(app)
    finally:
        app.extensions["atrium.config"] = settings
    listed = cast.alice.get("workflow-instances").json["items"]
    assert {one["id"]: one["status"] for one in listed} == dict.fromkeys(ids, "completed")


def test_instances_of_lost_workers_do_not_block_pending(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where more are due than a look finds, and those that were lost come last."""
    make_collection(cast.root)
    settings = app.extensions["atrium.config"]
    monkeypatch.setitem(app.extensions, "atrium.config", replace(settings, workflow_concurrency=1))
    monkeypatch.setattr(queue, "LARGEST_LOOK", 1)
    workflow, account_id = make_workflow(cast.alice, [create("a")]), cast.alice.account_id
    lost, pending = (start(cast.alice, workflow) for _ in range(2))
    with app.app_context():
        assert len(queue.claim(account_id, queue.look(set())[account_id], 10)) == 1
        with db.transaction() as session:
            for id, seconds in ((lost, -1), (pending, -60)):
                due = sa.update(INSTANCES).where(INSTANCES.c.id == id)
                session.execute(due.values(due_at=database_now(seconds)))
        found = queue.look(set())[account_id]
        assert found == [(pending, False)]
        assert [row.id for row in queue.claim(account_id, found, 10)] == [pending]
        found = queue.look(set())[account_id]
        assert (found, queue.claim(account_id, found, 10)) == ([(lost, True)], [])
        db.db.session.remove()


def test_instances_begun_are_limited_by_worker_threads(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in (cast.alice, cast.charlie):
        start(owner, make_workflow(owner, []))
    monkeypatch.setattr(dispatch, "THREADS", 1)
    begun: list[Any] = []

    def begin(self: Any, row: Any) -> None:
        self._running[row.account_id] += 1
        begun.append(row)

    monkeypatch.setattr(dispatch.Dispatcher, "_begin", begin)
    with app.app_context():
        dispatch.Dispatcher(threading.Event()).turn()
        db.db.session.remove()
    assert len(begun) == 1


@pytest.mark.parametrize("closes", [False, True])
def test_instances_are_deleted_with_workflow_or_account(
    app: Flask, cast: Cast, closes: bool
) -> None:
    make_collection(cast.root)
    before = counts(app)
    flow = make_workflow(cast.alice, [create("a"), WAIT])
    assert ran(app, cast.alice, flow)["status"] == "waiting"
    timed = make_workflow(cast.alice, [], {"type": "schedule", "cron": "0 4 * * *"})
    assert counts(app) == [1, 2, 1, 1, 2, 2]
    if closes:
        assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    else:
        for one in (flow, timed):
            assert cast.alice.delete(f"workflows/{one['id']}").status_code == 204
    with app.app_context():
        worker.run_due()
    assert counts(app) == before


def test_instances_and_versions_are_purged_by_age(
    app: Flask, alice: Caller, root: Caller, monkeypatch: Any
) -> None:
    make_collection(root)
    flow = make_workflow(alice, [create("a")])
    assert ran(app, alice, flow)["status"] == "completed"
    alice.put(f"workflows/{flow['id']}", {"steps": [WAIT]})
    assert ran(app, alice, flow)["status"] == "waiting"
    alice.put(f"workflows/{flow['id']}", {"steps": []})

    def counts_after_purge() -> list[int]:
        with app.app_context():
            purge.purge({})
            db.db.session.remove()
        return counts(app)

    # In use are the versions of what is kept, and the present one.
    assert counts_after_purge() == [2, 2, 0, 1, 3, 1]
    # What waited for long before it was over is kept as long as others.
    with app.app_context(), db.transaction() as session:
        aged = first_id(clock.now() - timedelta(days=40))
        mine = INSTANCES.c.status == "completed"
        session.execute(sa.update(INSTANCES).where(mine).values(id=aged))
        session.execute(
            sa.update(LOGS).where(LOGS.c.status == "completed").values(instance_id=aged)
        )
    assert counts_after_purge() == [2, 2, 0, 1, 3, 1]
    monkeypatch.setattr(purge, "timedelta", lambda days: timedelta(days=-1))
    assert counts_after_purge() == [1, 1, 0, 1, 2, 1]


def test_instance_due_lookup_is_found_by_an_index(
    app: Flask, database: str, alice: Caller, root: Caller
) -> None:
    make_collection(root)
    assert ran(app, alice, make_workflow(alice, [create("a")]))["status"] == "completed"
    asked = leases.due_statement(QUEUE, 100, INSTANCES.c.status)
    with app.app_context(), db.transaction() as session:
        row = session.execute(sa.select(INSTANCES)).mappings().one()
        session.execute(sa.insert(INSTANCES), [{**row, "id": new_id()} for _ in range(3000)])
        with tenancy.as_owner():
            session.execute(sa.text("ANALYZE"))
        text = str(asked.compile(db.db.engine, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN" if database == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = str(session.execute(sa.text(f"{explain} {text}")).all())
    assert "ix_workflow_instances_due" in plan
    assert "Sort" not in plan.replace("Sort Key", "")


def test_instance_is_released_by_its_last_claim_only(app: Flask, alice: Caller) -> None:
    id = start(alice, make_workflow(alice, [WAIT]))
    account_id, mine = alice.account_id, INSTANCES.c.id == id
    with app.app_context():
        (first,) = queue.claim(account_id, [(id, False)], 1)
        with db.transaction() as session:
            session.execute(sa.update(INSTANCES).where(mine).values(due_at=database_now(-1)))
        (second,) = queue.claim(account_id, [(id, True)], 1)
        released = []
        for claim in (first.claim, second.claim):
            leases.release(QUEUE, account_id, [(id, claim)])
            released.append(queue.look(set()) != {})
        assert released == [False, True]
        with db.transaction() as session:
            over = {"status": "cancelled", "due_at": None}
            session.execute(sa.update(INSTANCES).where(mine).values(**over))
        leases.release(QUEUE, account_id, [(id, second.claim)])
        assert db.connection().scalar(sa.select(INSTANCES.c.due_at)) is None
        db.db.session.remove()


def test_instance_started_during_workflow_deletion_is_deleted(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, begun = make_workflow(alice, [], {"type": "webhook"}), service._start

    def gone() -> None:
        assert alice.delete(f"workflows/{made['id']}").status_code == 204
        with app.app_context():
            purge._remove({"account_id": alice.account_id, "workflow_id": made["id"]})

    def meanwhile(*given: Any) -> str:
        other.start()
        other.join(0.3)
        return begun(*given)

    other = threading.Thread(target=gone)
    monkeypatch.setattr(service, "_start", meanwhile)
    assert Caller(app).post(f"workflow-webhooks/{made['trigger']['token']}").status_code == 202
    other.join()
    assert counts(app) == [0] * len(TABLES)
