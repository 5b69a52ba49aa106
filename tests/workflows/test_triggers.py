"""What starts workflows: events, schedules, webhooks; and waiting."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.auth import principal as principals
from app.ids import new_id
from app.records import service as records
from app.workflows.dispatch import Dispatcher
from app.workflows.models import INSTANCES, SCHEDULES, SUBSCRIPTIONS, Workflow
from app.workflows.triggers import schedules
from app.workflows.triggers import start as beginning
from tests.builders import Caller, Cast, change_user, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.workflows.running import (
    create,
    instance,
    let_pass,
    make_workflow,
    outputs,
    ran,
    rows,
    start,
    work,
)

FIELDS = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
ON_CREATE = {"type": "event", "event": "records.create", "collection": "Posts"}


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    make_collection(root, "others", FIELDS)
    return make_collection(root, schema=FIELDS)


def listed(caller: Caller, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.get(f"workflow-instances?{query}").json["items"]
    return found


def test_workflow_event_trigger_starts_for_met_condition(
    cast: Cast, app: Flask, posts: Any
) -> None:
    alice = cast.alice
    condition = "trigger.record.n > 1 && n < 9 && @request.auth.email ~ 'alice%'"
    make_workflow(alice, [], {**ON_CREATE, "condition": condition})
    other = make_workflow(alice, [], {"type": "event", "event": "update"})
    for n in (1, 2, 9):
        make_record(alice, title="x", n=n)
    make_record(cast.charlie, title="x", n=2)
    make_record(alice, "others", title="x", n=2)
    (begun,) = listed(alice)
    trigger = begun["context"]["trigger"]
    assert (trigger["event"], trigger["collection"]) == ("records.create", "posts")
    assert (trigger["record"]["n"], trigger["previous"], begun["status"]) == (2, None, "pending")
    changed = make_record(alice, title="y", n=0)["id"]
    alice.patch(f"records/posts/{changed}", {"n": 5})
    (updated,) = listed(alice, f"workflow_id={other['id']}")
    told = updated["context"]["trigger"]
    assert (told["record"]["n"], told["previous"]["n"]) == (5, 0)
    # Refused, so nothing happened.
    assert alice.post("records/posts", {"title": 3}).status_code == 400
    assert alice.patch(f"workflows/{other['id']}/toggle").json["enabled"] is False
    alice.patch(f"records/posts/{changed}", {"n": 6})
    assert len(listed(alice)) == 2


def test_workflow_condition_reads_people_of_the_record(cast: Cast, app: Flask) -> None:
    team = {"name": "team", "type": "text"}
    secret = {"name": "secret", "type": "text", "visible_to": "superadmin"}
    secret["writable_by"] = "superadmin"
    answer = cast.root.put("attributes/users", {"fields": [team, secret]})
    assert answer.status_code == 200, answer.json
    values = {"name": "Bob", "attributes": {"team": "red", "secret": "x"}}
    assert cast.root.patch(f"users/{cast.bob.id}", values).status_code == 200
    make_collection(cast.root, schema=[*FIELDS, {"name": "assignee", "type": "user"}])
    texts = {
        "assignee.attributes.team = 'red'": True,
        "record.assignee.attributes.team = 'blue'": False,
        "trigger.record.assignee.name = 'Bob' && assignee.email ~ 'bob@%'": True,
        "assignee.role = 'viewer' && assignee.is_active": True,
        f"assignee.id = '{cast.bob.id}'": True,
        "assignee.attributes.secret = 'x'": False,
        "previous.assignee.name = 'Bob'": False,
        "assignee.password_hash != null": False,
        "title.name != null": False,
    }
    names = {
        make_workflow(cast.alice, [], {**ON_CREATE, "condition": text})["id"]: text
        for text in texts
    }
    make_record(cast.alice, title="x", assignee=cast.bob.id)
    expected = {text for text, holds in texts.items() if holds}
    assert {names[one["workflow_id"]] for one in listed(cast.alice)} == expected
    changed = {
        **ON_CREATE,
        "event": "records.update",
        "condition": "previous.assignee.name = 'Bob'",
    }
    flow = make_workflow(cast.alice, [], changed, name="changed")["id"]
    made = make_record(cast.alice, title="y", assignee=cast.bob.id)["id"]
    assert cast.alice.patch(f"records/posts/{made}", {"assignee": None}).status_code == 200
    assert len(listed(cast.alice, f"workflow_id={flow}")) == 1
    assert cast.alice.patch(f"records/posts/{made}", {"title": "z"}).status_code == 200
    assert len(listed(cast.alice, f"workflow_id={flow}")) == 1


def test_workflow_trigger_data_is_limited_to_view_of_owner(cast: Cast, app: Flask) -> None:
    fields = [*FIELDS, {"name": "mail", "type": "email", "pii": True, "mask_type": "email"}]
    make_collection(cast.root, schema=fields)
    workflow = make_workflow(cast.alice, [], ON_CREATE)
    make_record(cast.alice, title="x", mail="eve@x.example")
    (begun,) = listed(cast.alice)
    assert begun["context"]["trigger"]["record"]["mail"] == "eve@x.example"
    admins = {"email": "dora@acme.example", "role": "admin"}
    assert cast.alice.post("account/users", admins).status_code == 201
    masked = cast.root.acting_in("acme")
    assert cast.root.get("users").status_code == 200
    taken = masked.put(f"workflows/{workflow['id']}", {"steps": [create("x")]}).json
    assert taken["owner_id"] == cast.root.id


def test_workflow_webhook_trigger_needs_its_token_only(app: Flask, cast: Cast, posts: Any) -> None:
    made = make_workflow(cast.alice, [create("a", "{{ trigger.x }}")], {"type": "webhook"})
    token, anyone = made["trigger"]["token"], Caller(app)
    sent = anyone.post(f"workflow-webhooks/{token}", {"x": "hello"})
    assert (sent.status_code, set(sent.json)) == (202, {"message", "instance_id"})
    work(app)
    assert instance(cast.alice, sent.json["instance_id"])["status"] == "completed"
    assert cast.alice.get("records/posts").json["items"][0]["title"] == "hello"
    assert anyone.post(f"workflow-webhooks/{token}x").status_code == 404
    assert anyone.post(f"workflow-webhooks/{token}", data="[1]").status_code in (415, 422)
    path = f"workflows/{made['id']}"
    assert cast.alice.put(path, {"trigger": made["trigger"]}).json["trigger"]["token"] == token
    cast.alice.patch(f"{path}/toggle")
    assert anyone.post(f"workflow-webhooks/{token}").status_code == 404
    cast.alice.patch(f"{path}/toggle")
    cast.root.patch(f"accounts/{cast.alice.account_id}", {"is_active": False})
    assert anyone.post(f"workflow-webhooks/{token}").status_code == 404


@pytest.mark.parametrize("ticks", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_workflow_schedule_fires_once_with_two_schedulers(
    app: Flask, alice: Caller, posts: Any, ticks: int
) -> None:
    made = make_workflow(alice, [], {"type": "schedule", "cron": "* * * * *"})
    with app.app_context():
        first = db.connection().execute(sa.select(SCHEDULES.c.next_at)).scalar_one()
        db.db.session.remove()
    both = threading.Barrier(2)

    def schedule() -> None:
        with app.app_context():
            for tick in range(ticks):
                both.wait(30)
                schedules.fire(first + timedelta(minutes=tick, seconds=1))
            db.db.session.remove()

    threads = [threading.Thread(target=schedule) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    due = [row.context for row in rows(app)]
    assert (len(due), len(set(due))) == (ticks, ticks)
    # After downtime it catches up once.
    with app.app_context():
        assert [schedules.fire(first + timedelta(days=3)) for _ in range(2)] == [1, 0]
        assert alice.patch(f"workflows/{made['id']}/toggle").status_code == 200
        assert schedules.fire(first + timedelta(days=30)) == 0
        db.db.session.remove()


@pytest.mark.both_databases
def test_workflow_schedule_follows_its_time_zone(app: Flask, alice: Caller) -> None:
    berlin = {"type": "schedule", "cron": "@daily", "timezone": "Europe/Berlin"}
    made = make_workflow(alice, [], berlin)
    assert made["trigger"] == berlin

    def next_hour() -> int:
        with app.app_context():
            at = db.connection().execute(sa.select(SCHEDULES.c.next_at)).scalar_one()
            db.db.session.remove()
        return int(at.hour)

    assert next_hour() in (22, 23)
    path = f"workflows/{made['id']}"
    tokyo = {**berlin, "timezone": "Asia/Tokyo"}
    assert alice.patch(path, {"trigger": tokyo}).json["trigger"] == tokyo
    assert next_hour() == 15
    let_pass(app, 2 * 86_400)
    with app.app_context():
        assert schedules.fire() == 1
        db.db.session.remove()
    assert next_hour() == 15
    given = instance(alice, rows(app)[0].id)["context"]["trigger"]
    assert (given["timezone"], given["cron"]) == ("Asia/Tokyo", "0 0 * * *")
    assert alice.patch(path, {"trigger": {"type": "schedule", "cron": "@daily"}}).status_code == 200
    assert next_hour() == 0


def test_workflow_schedule_that_fails_does_not_block_others(
    app: Flask, alice: Caller, root: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    daily = {"type": "schedule", "cron": "0 4 * * *"}
    ids = [make_workflow(alice, [], daily)["id"] for _ in range(3)]
    with app.app_context(), db.transaction() as session:
        for number, id in enumerate(ids):
            due = {"next_at": clock.now() - timedelta(hours=3 - number)}
            mine = sa.update(SCHEDULES).where(SCHEDULES.c.workflow_id == id)
            session.execute(mine.values(**due))
    write = beginning.row

    def row(workflow: Any, *given: Any) -> Any:
        return write(None if workflow.id in ids[:2] else workflow, *given)

    monkeypatch.setattr(beginning, "row", row)
    with app.app_context():
        assert [schedules.fire() for _ in range(2)] == [1, 0]
        db.db.session.remove()
    assert [one["workflow_id"] for one in listed(alice)] == [ids[2]]
    # They have their turn again, later; and none of an account that is closed to all.
    root.patch(f"accounts/{alice.account_id}", {"is_active": False})
    let_pass(app, 86400)
    monkeypatch.setattr(beginning, "row", write)
    with app.app_context():
        schedules.fire()
        db.db.session.remove()
    assert len(rows(app)) == 1


OLD = "0 4 15W * *"  # accepted once


@pytest.mark.not_on_citus("it locks rows of all accounts itself, or goes back to former migrations")
def test_workflow_schedule_with_unsupported_cron_is_cancelled(app: Flask, cast: Cast) -> None:
    alice, daily = cast.alice, {"type": "schedule", "cron": "0 4 * * *"}
    path = f"workflows/{make_workflow(alice, [], daily)['id']}"
    hook = f"hooks/{alice.post('hooks', {'name': 'x', 'trigger': daily}).json['id']}"
    with app.app_context(), db.transaction() as session:
        trigger = {"type": "schedule", "cron": OLD}
        session.execute(sa.update(Workflow).values(trigger=trigger))
        late = {"next_at": clock.now() - timedelta(minutes=1), "cron": OLD}
        session.execute(sa.update(SCHEDULES).values(**late))
    with app.app_context():
        assert [schedules.fire() for _ in range(2)] == [2, 0]
        db.db.session.remove()
    for one in listed(alice):
        assert one["status"] == "cancelled"
        assert f"The schedule '{OLD}' is no longer supported" in one["error_message"]
        assert "'15W' is not a valid day of month" in one["error_message"]
    assert [one.status for one in rows(app)] == ["cancelled", "cancelled"]
    assert alice.get(hook).json["next_run_at"] is None
    # What leaves the trigger alone still works; whoever enables it learns what to change.
    assert alice.put(path, {"name": "other"}).json["trigger"]["cron"] == OLD
    assert alice.patch(f"{path}/toggle").json["enabled"] is False
    page = f"workflows/{alice.account_id}/workflow/{path.rpartition('/')[2]}"
    shown = Browser(app, alice).send(f"{page}/enable")
    refused = beside(shown, "trigger_cron")
    assert (shown.status_code, "&#39;15W&#39; is not" in refused) == (400, True)
    assert alice.put(hook, {"enabled": False}).status_code == 200
    for answer in (alice.patch(f"{path}/toggle"), alice.put(hook, {"enabled": True})):
        (detail,) = answer.json["details"]
        expected = (400, "trigger.cron", "cron_invalid")
        assert (answer.status_code, detail["field"], detail["code"]) == expected
    assert alice.put(path, {"trigger": daily}).status_code == 200
    assert alice.patch(f"{path}/toggle").json["enabled"] is True


def test_instance_event_wait_ends_once(app: Flask, cast: Cast, posts: Any) -> None:
    alice = cast.alice
    wait = {
        "name": "approved",
        "type": "wait_event",
        "event": "records.update",
        "collection": "posts",
        "condition": "record.id = steps.make.output.id && title = trigger.word",
        "timeout": "1h",
    }
    workflow = make_workflow(alice, [create("make"), wait, create("after", "done")])
    found = ran(app, alice, workflow, {"word": "yes"})
    assert (found["status"], found["current_step"]) == ("waiting", "approved")
    mine = outputs(found)["make"]["id"]
    other = make_record(alice, title="x")["id"]
    for id, title in ((other, "yes"), (mine, "no")):
        alice.patch(f"records/posts/{id}", {"title": title})
    work(app)
    assert instance(alice, found["id"])["status"] == "waiting"
    for _ in range(2):
        alice.patch(f"records/posts/{mine}", {"title": "yes", "n": 1})
    work(app)
    done = instance(alice, found["id"])
    assert (done["status"], done["current_step"]) == ("completed", None)
    assert outputs(done)["approved"]["record"]["id"] == mine
    assert rows(app, SUBSCRIPTIONS) == []


def test_instance_event_wait_uses_rights_of_owner(app: Flask, cast: Cast, posts: Any) -> None:
    """Of whoever has saved the steps since; where nobody may act, the instance fails."""
    wait = {"name": "w", "type": "wait_event", "event": "records.create", "timeout": "1h"}
    steps = [{**wait, "condition": "title = 'yes'"}]
    workflow, own = make_workflow(cast.alice, steps), cast.root.acting_in("acme")
    id = start(cast.alice, workflow)
    lost = start(cast.alice, make_workflow(cast.alice, steps))
    work(app)
    assert own.put(f"workflows/{workflow['id']}", {"steps": steps}).status_code == 200
    change_user(app, cast.alice.id, is_active=False)
    make_record(own, title="yes")
    work(app)
    found, gone = instance(own, id), instance(own, lost)
    assert (found["status"], gone["status"]) == ("completed", "failed"), found["error_message"]
    assert outputs(found)["w"]["record"]["title"] == "yes"
    assert "lost access" in gone["error_message"]
    assert rows(app, SUBSCRIPTIONS) == []


def test_workflow_event_without_active_owner_fails_visibly(
    app: Flask, cast: Cast, posts: Any
) -> None:
    """Whatever its condition, which nobody can ask: else nothing would happen, and nobody know."""
    trigger = {"type": "event", "event": "records.create", "condition": "title = 'yes'"}
    workflow = make_workflow(cast.alice, [create("one")], trigger)
    own = cast.root.acting_in("acme")
    make_record(own, title="no")
    change_user(app, cast.alice.id, is_active=False)
    make_record(own, title="yes")
    work(app)
    (found,) = own.get(f"workflows/{workflow['id']}/instances").json["items"]
    assert found["status"] == "failed"
    assert "lost access" in found["error_message"]


def test_workflow_condition_on_non_record_values(app: Flask, alice: Caller, posts: Any) -> None:
    wait = {"name": "w", "type": "wait_condition", "expression": "record = null"}
    workflow = make_workflow(alice, [wait])
    sent: list[Any] = ["abc", {"id": ["x"]}, {"id": 7}, [{"id": "x"}], None, {"id": "none"}]
    ids = [start(alice, workflow, {"record": one, "collection": "posts"}) for one in sent]
    work(app)
    assert {instance(alice, id)["status"] for id in ids} == {"completed"}


def test_instance_event_between_check_and_wait_is_not_lost(
    app: Flask, alice: Caller, posts: Any
) -> None:
    """An event that looked for who waits, and is not committed, lets nobody begin to wait."""
    wait = {"name": "w", "type": "wait_event", "event": "records.create", "timeout": "1h"}
    id = start(alice, make_workflow(alice, [wait]))
    worker = threading.Thread(target=work, args=[app])
    with app.app_context():
        by = principals.for_user(alice.account_id, alice.id)
        assert by is not None
        db.hold_commits()
        records.create("posts", {"title": "before"}, by=by)
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
        assert instance(alice, id)["status"] in ("pending", "running")
        db.hold_commits(hold=False)
        with db.held_transaction():
            pass
        db.db.session.remove()
    worker.join()
    # What came before does not count; whatever comes from now on does.
    assert instance(alice, id)["status"] == "waiting"
    made = make_record(alice, title="after")
    work(app)
    assert outputs(instance(alice, id))["w"]["record"]["id"] == made["id"]


def test_instance_event_of_own_branch_ends_its_wait(app: Flask, alice: Caller, posts: Any) -> None:
    """One branch waits while another works: the event of its own step wakes it at once."""
    wait = {"name": "w", "type": "wait_event", "event": "records.create", "timeout": "1h"}
    both = {"name": "p", "type": "parallel", "branches": [[wait], [create("make", "own")]]}
    found = ran(app, alice, make_workflow(alice, [both]))
    assert found["status"] == "completed"
    assert outputs(found)["w"]["record"]["title"] == "own"


def test_instance_waits_end_in_time_or_fail(app: Flask, alice: Caller, posts: Any) -> None:
    delay = {"name": "d", "type": "wait_delay", "duration": "2h"}
    true = {"name": "t", "type": "wait_condition", "expression": "now > '2020-01-01'"}
    poll = {
        "name": "p",
        "type": "wait_condition",
        "expression": "record.n = 5",
        "poll_interval": "5m",
        "timeout": "10m",
    }
    never = {"name": "e", "type": "wait_event", "event": "records.delete", "timeout": "30m"}
    make_workflow(alice, [delay, true, poll, never], ON_CREATE)
    id = make_record(alice, title="x", n=1)["id"]
    work(app)
    (begun,) = listed(alice)

    def after(seconds: int) -> tuple[str, str]:
        let_pass(app, seconds)
        work(app)
        found = instance(alice, begun["id"])
        return found["status"], found["current_step"]

    assert after(7000) == ("waiting", "d")
    assert after(300) == ("waiting", "p")
    assert after(310) == ("waiting", "p")
    assert after(310) == ("failed", "p")
    assert alice.post(f"workflow-instances/{begun['id']}/resume").status_code == 200
    assert after(0) == ("waiting", "p")
    alice.patch(f"records/posts/{id}", {"n": 5})
    assert after(310) == ("waiting", "e")
    assert after(1900) == ("failed", "e")
    assert rows(app, SUBSCRIPTIONS) == []
    since = clock.iso(clock.now() - timedelta(minutes=5))
    body = {"from": since, "workflow_id": begun["workflow_id"]}
    assert alice.post("workflow-instances/resume", {"to": since}).json["count"] == 0
    assert alice.post("workflow-instances/resume", body).json["count"] == 1
    assert [one["status"] for one in listed(alice, f"status=pending&from={since}")] == ["pending"]


def test_instances_that_wait_take_no_worker_time(app: Flask, alice: Caller, posts: Any) -> None:
    wait = {"name": "w", "type": "wait_event", "event": "records.delete", "timeout": "1h"}
    found = ran(app, alice, make_workflow(alice, [wait]))
    with app.app_context(), db.transaction():
        row = db.connection().execute(sa.select(INSTANCES)).mappings().one()
        many = [{**row, "id": new_id()} for _ in range(1000)]
        db.connection().execute(sa.insert(INSTANCES), many)
    with app.app_context():
        dispatcher = Dispatcher(threading.Event())
        dispatcher.turn()
        assert not dispatcher.busy
        db.db.session.remove()
    # They take no room from others either.
    assert ran(app, alice, make_workflow(alice, [create("a")]))["status"] == "completed"
    assert instance(alice, found["id"])["status"] == "waiting"
