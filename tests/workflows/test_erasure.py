"""What is erased is gone from instances, too: of records, of users."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from flask import Flask

from app import db
from app.workflows.engine import queue
from app.workflows.engine.queue import Slots
from app.workflows.engine.run import Run
from app.workflows.models import SUBSCRIPTIONS
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.workflows.running import (
    action,
    create,
    instance,
    logs,
    make_workflow,
    ran,
    rows,
    start,
    work,
)

ON_CREATE = {"type": "event", "event": "records.create", "collection": "posts"}
HER = "Eve Example"
TITLE = "{{ trigger.record.title }}!"


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    make_collection(root, "others")
    return make_collection(root)


def kept(app: Flask) -> str:
    """All that is stored of instances."""
    return str([rows(app), logs(app), rows(app, SUBSCRIPTIONS)])


def test_record_erasure_removes_values_from_instances(app: Flask, cast: Cast, posts: Any) -> None:
    root, alice = cast.root.acting_in("acme"), cast.alice
    copy, end = (
        action(name, "create_record", collection="others", data={"title": TITLE})
        for name in ("copy", "x")
    )
    wait = {
        "name": "w",
        "type": "wait_event",
        "event": "records.update",
        "condition": "title = trigger.record.title",
    }
    bad = action("bad", "delete_record", collection="others", record_id=TITLE)
    for last in (end, wait, bad):
        make_workflow(alice, [copy, last], ON_CREATE)
    id = make_record(alice, title=HER)["id"]
    work(app)
    assert HER in kept(app)
    assert {row.status for row in rows(app)} == {"completed", "waiting", "failed"}
    other = ran(app, alice, make_workflow(alice, [end]), {"record": {"title": "kept"}})
    make_workflow(alice, [], {**ON_CREATE, "event": "records.delete"})
    answer = root.post(f"records/posts/{id}/erase")
    assert answer.status_code == 200, answer.json
    assert HER not in kept(app)
    found = [instance(alice, row.id) for row in rows(app) if row.id != other["id"]]
    assert [one["status"] for one in found] == ["completed", "cancelled", "cancelled", "pending"]
    # How far they came is still told; what begins with the deletion knows the id alone.
    assert list(found[0]["context"]["steps"]) == ["copy", "x"]
    assert found[3]["context"]["trigger"]["previous"] == {"id": id}
    assert instance(alice, other["id"]) == other
    assert alice.post(f"workflow-instances/{found[2]['id']}/resume").status_code == 409
    work(app)
    assert instance(alice, found[3]["id"])["status"] == "completed"


def test_record_erasure_removes_values_from_instances_of_other_account(
    app: Flask, cast: Cast, posts: Any
) -> None:
    data = {"account_id": cast.alice.account_id, "title": "{{ trigger.title }}"}
    for owner in (cast.root, cast.root.acting_in("globex")):
        made = action("made", "create_record", collection="posts", data=data)
        done = ran(app, owner, make_workflow(owner, [made]), {"title": HER})
        assert (done["status"], HER in kept(app)) == ("completed", True)
        record = cast.alice.get("records/posts").json["items"][0]
        assert cast.alice.post(f"records/posts/{record['id']}/erase").status_code == 200
        assert HER not in kept(app)
        assert instance(owner, done["id"])["status"] == "completed"


def test_user_erasure_removes_id_and_email_from_instances(
    app: Flask, cast: Cast, posts: Any
) -> None:
    eve = make_user(app, cast.alice.account_id, "Zoë@acme.example", "admin")
    wait = {"name": "w", "type": "wait_delay", "duration": "1h"}
    flow = make_workflow(cast.alice, [create("a", "{{ trigger.by }}"), wait])
    body = {"by": eve.id, "to": "about zoë@acme.example", eve.id: ["Zoë@acme.example"]}
    body |= {"cc": "Zora@acme.example, ZOË@Acme.Example"}
    found = ran(app, cast.alice, flow, body)
    other = ran(app, cast.alice, flow, {"to": "Zora@acme.example"})
    assert cast.root.delete(f"users/{eve.id}").status_code == 204
    answer = cast.root.post(f"users/{eve.id}/erase")
    assert answer.status_code == 200, answer.json
    assert eve.id not in kept(app)
    assert "zoë@acme" not in kept(app).lower()
    after = instance(cast.alice, found["id"])
    assert (after["status"], after["context"]["trigger"]["to"]) == ("waiting", "about ***")
    assert after["context"]["trigger"]["cc"] == "Zora@acme.example, ***"
    assert instance(cast.alice, other["id"]) == other


def test_erasure_during_running_instance_is_not_undone(app: Flask, cast: Cast, posts: Any) -> None:
    """Neither a user's id nor a record that it knows by heart, being in the middle of its steps."""
    eve = make_user(app, cast.alice.account_id, "eve@acme.example", "admin")
    id = make_record(cast.alice, title=HER)["id"]
    flow = make_workflow(cast.alice, [create("a", "x")])
    both = [start(cast.alice, flow, {"by": eve.id}), start(cast.alice, flow, {"record": id})]
    with app.app_context():
        ((account_id, due),) = queue.look(set()).items()
        claimed = queue.claim(account_id, due, 2)
        db.db.session.remove()
    assert cast.root.acting_in("acme").post(f"records/posts/{id}/erase").status_code == 200
    assert cast.root.post(f"users/{eve.id}/erase").status_code == 200
    for row in claimed:
        run = Run(row, Slots(1))
        with app.app_context(), pytest.raises(queue.Lost):
            run.carry_out(threading.Event())
    assert eve.id not in kept(app)
    assert id not in kept(app)
    work(app)
    assert [instance(cast.alice, one)["status"] for one in both] == ["completed", "cancelled"]
    assert cast.alice.get("records/posts").json["total"] == 1


def test_record_erasure_removes_idempotent_responses_of_resumes(
    app: Flask, cast: Cast, posts: Any
) -> None:
    id = make_record(cast.alice, title=HER)["id"]
    change = action(
        *("a", "update_record"),
        collection="posts",
        record_id="{{ trigger.rid }}",
        data={"nothing": "{{ trigger.title }}"},
    )
    flow = make_workflow(cast.alice, [change])
    found = ran(app, cast.alice, flow, {"rid": id, "title": HER})
    assert found["status"] == "failed"
    path, once = f"workflow-instances/{found['id']}/resume", {"Idempotency-Key": "once"}
    for caller in (cast.alice, cast.root.acting_in("acme")):
        answer = caller.post(path, headers=once)
        assert HER in answer.text
        assert caller.post(path, headers=once).text == answer.text
        work(app)
    assert cast.alice.post(f"records/posts/{id}/erase").status_code == 200
    for caller in (cast.alice, cast.root.acting_in("acme")):
        answer = caller.post(path, headers=once)
        assert answer.status_code == 409
        assert HER not in answer.text
