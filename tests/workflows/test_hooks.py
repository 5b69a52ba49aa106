"""Hooks: the one-step form of workflows, on the same engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from flask import Flask

from app import db
from app.workflows import hooks
from app.workflows.triggers import schedules
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.workflows.running import action, create, let_pass, make_workflow, work

FIELDS = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
ON_CREATE = {"type": "event", "event": "records.create", "collection": "posts"}


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    make_collection(root, "others", FIELDS)
    return make_collection(root, schema=FIELDS)


def copy(title: str, collection: str = "others") -> dict[str, Any]:
    data = {"title": title}
    return {"type": "create_record", "config": {"collection": collection, "data": data}}


def make_hook(owner: Caller, trigger: dict[str, Any], *actions: Any, **more: Any) -> dict[str, Any]:
    body = {"name": "hook", "trigger": trigger, "actions": list(actions), **more}
    answer = owner.post("hooks", body)
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def executions(owner: Caller, hook: dict[str, Any]) -> list[tuple[str, int]]:
    items = owner.get(f"hooks/{hook['id']}/executions?limit=5&offset=0").json["items"]
    return [(one["status"], one["actions_executed"]) for one in items]


def test_hook_runs_for_event_that_meets_its_condition(app: Flask, cast: Cast, posts: Any) -> None:
    text = "{{ trigger.record.title }}!"
    trigger = {**ON_CREATE, "condition": "n < 9 || n = 10"}
    hook = make_hook(cast.alice, trigger, copy(text), condition="n > 1")
    assert hook["actions"] == [copy(text)]
    for n in (1, 2, 9):
        make_record(cast.alice, title=f"t{n}", n=n)
    work(app)
    assert [one["title"] for one in cast.alice.get("records/others").json["items"]] == ["t2!"]
    assert executions(cast.alice, hook) == [("success", 1)]
    assert cast.alice.get("workflows").json["total"] == 0
    assert cast.alice.get("workflow-instances").json["total"] == 0


def test_hook_runs_by_hand_and_schedule(app: Flask, alice: Caller, posts: Any) -> None:
    asked = {"condition": "trigger.go = true || trigger.cron != null"}
    hook = make_hook(alice, {"type": "schedule", "cron": "0 4 * * *"}, copy("a"), **asked)
    assert (hook["cron"], hook["last_run_at"], hook["next_run_at"] is None) == (
        "0 4 * * *",
        None,
        False,
    )
    path = f"hooks/{hook['id']}"
    for body in ({"go": False}, {"go": True}):
        assert alice.post(f"{path}/trigger", body).status_code == 202
    let_pass(app, 86400)
    work(app)
    assert sorted(executions(alice, hook)) == [("success", 0), ("success", 1), ("success", 1)]
    assert alice.get(path).json["last_run_at"] is not None
    ran = alice.get(path).json["last_run_at"]
    off = alice.patch(f"{path}/toggle").json
    assert (off["last_run_at"], off["next_run_at"]) == (ran, None)
    on = alice.patch(f"{path}/toggle").json
    assert (on["last_run_at"], on["next_run_at"]) == (ran, hook["next_run_at"])
    assert alice.patch(f"{path}/toggle").json["enabled"] is False
    assert alice.post(f"{path}/trigger").json["error"] == "disabled"
    assert alice.delete(path).status_code == 204
    assert alice.get(path).status_code == 404


def test_hook_failure_reports_progress_and_can_be_resumed(
    app: Flask, cast: Cast, posts: Any
) -> None:
    flat = {"action_type": "create_record", "collection": "none", "data": {"title": "b"}}
    hook = make_hook(cast.alice, {"type": "manual"}, copy("a"), flat)
    id = cast.alice.post(f"hooks/{hook['id']}/trigger").json["instance_id"]
    work(app)
    assert executions(cast.alice, hook) == [("partial", 1)]
    make_collection(cast.root, "none", FIELDS)
    assert cast.alice.post(f"workflow-instances/{id}/resume").status_code == 200
    work(app)
    assert executions(cast.alice, hook) == [("success", 2)]
    assert cast.alice.get("records/others").json["total"] == 1


def test_hook_change_without_actions_keeps_owner(app: Flask, alice: Caller, posts: Any) -> None:
    hook = make_hook(alice, {"type": "schedule", "cron": "0 4 * * *"}, copy("a"))
    path = f"hooks/{hook['id']}"
    let_pass(app, 86400)
    with app.app_context():
        assert schedules.fire() == 1
        db.db.session.remove()
    fired = alice.get(path).json
    other = Caller(app, make_user(app, alice.account_id, "dora@acme.example", "admin"))
    let_pass(app, 86400)
    for change in ({"name": "other"}, {"trigger": fired["trigger"]}):
        changed = other.patch(path, change).json
        assert changed["owner_id"] == alice.id
        # What is due by now is still to be fired.
        assert changed["last_run_at"] == fired["last_run_at"] is not None
        assert changed["next_run_at"] < fired["next_run_at"]
    assert other.patch(path, {"actions": [copy("a")]}).json["owner_id"] == other.id
    assert other.patch(path, {"trigger": {"type": "manual"}}).json["next_run_at"] is None


def test_hook_and_workflow_trigger_change_keeps_owner_rights(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "others", FIELDS, create_rule=None)
    hook = make_hook(cast.alice, {"type": "manual"}, copy("a"))
    flow = make_workflow(
        cast.alice, [action("a", "create_record", collection="others", data={"title": "a"})]
    )
    admin = cast.root.acting_in("acme")
    yearly = {"trigger": {"type": "schedule", "cron": "0 0 1 1 *"}}
    paths = f"hooks/{hook['id']}", f"workflows/{flow['id']}"
    asked = {"condition": "trigger.go = true"}
    for path, change in ((paths[0], yearly), (paths[0], asked), (paths[1], yearly)):
        assert admin.put(path, change).json["owner_id"] == cast.alice.id
    assert admin.get(paths[1]).json["version"] == 2
    for path in paths:
        assert cast.alice.post(f"{path}/trigger", {"go": True}).status_code == 202
    work(app)
    assert executions(cast.alice, hook) == [("failed", 0)]
    assert cast.alice.get("workflow-instances?status=failed").json["total"] == 1
    assert admin.get("records/others").json["total"] == 0


def test_hook_condition_change_keeps_owner_and_its_view(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "posts", [{"name": "mail", "type": "email", "pii": True}])
    make_collection(cast.root, "others", FIELDS)
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    mine = make_hook(dora, ON_CREATE, copy("{{ trigger.record.mail }}"))
    path, asked = f"hooks/{mine['id']}", {"condition": "mail != null"}
    assert cast.alice.patch(path, asked).json["owner_id"] == dora.id
    make_record(cast.alice, mail="eve@x.example")
    work(app)
    assert [one["title"] for one in dora.get("records/others").json["items"]] == ["*" * 8]
    # By a condition whoever sees less would ask what the owner sees.
    hers = make_hook(cast.alice, {"type": "manual"}, copy("a"))
    path = f"hooks/{hers['id']}"
    assert dora.patch(path, {**asked, "trigger": ON_CREATE}).status_code == 403
    elsewhere = {"trigger": {**ON_CREATE, "collection": "others"}}
    assert dora.patch(path, elsewhere).json["owner_id"] == cast.alice.id
    roots = make_hook(cast.root.acting_in("acme"), elsewhere["trigger"], copy("a"))
    path = f"hooks/{roots['id']}"
    refused = cast.alice.patch(path, {"trigger": ON_CREATE})
    assert (refused.status_code, refused.json["error"]) == (403, "forbidden")
    assert cast.alice.patch(path, {"name": "other"}).json["owner_id"] == cast.root.id
    sent = {"trigger": ON_CREATE, "actions": roots["actions"]}
    assert cast.alice.patch(path, sent).json["owner_id"] == cast.alice.id


def test_hook_execution_count_includes_withheld_steps(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "others", [{**FIELDS[0], "pii": True}])
    bad = {"type": "delete_record", "config": {"collection": "others", "record_id": "none"}}
    hook = make_hook(cast.alice, {"type": "manual"}, copy("her secret"), bad)
    assert cast.alice.post(f"hooks/{hook['id']}/trigger").status_code == 202
    work(app)
    other = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    for admin in (cast.alice, other):
        assert executions(admin, hook) == [("partial", 1)]
    seen = other.get(f"hooks/{hook['id']}/executions")
    assert seen.json["items"][0]["execution_context"] is None
    assert "secret" not in seen.text


def test_instance_bulk_resume_equals_list_filter(app: Flask, cast: Cast) -> None:
    hook = make_hook(cast.alice, {"type": "manual"}, copy("a", "none"))
    flow = make_workflow(cast.alice, [create("a")])
    for path in (f"hooks/{hook['id']}", f"workflows/{flow['id']}"):
        assert cast.alice.post(f"{path}/trigger").status_code == 202
    work(app)

    def both(**named: str) -> tuple[list[str], int]:
        query = "&".join(f"{name}={value}" for name, value in named.items())
        items = cast.alice.get(f"workflow-instances?status=failed&{query}").json["items"]
        count = cast.alice.post("workflow-instances/resume", named).json["count"]
        return [one["workflow_id"] for one in items], count

    assert both() == ([flow["id"]], 1)
    assert both(workflow_id=flow["id"]) == ([], 0)
    assert both(workflow_id=hook["id"]) == ([hook["id"]], 1)


def test_hook_validation_and_change(alice: Caller, posts: Any) -> None:
    bad = {
        "name": "x",
        "trigger": {"type": "webhook"},
        "condition": "n >",
        "actions": [{"type": "fly"}, {"type": []}],
    }
    details = alice.post("hooks", bad).json["details"]
    places = {one["field"]: one["code"] for one in details}
    assert places == {
        "trigger.type": "type_invalid",
        "condition": "expression_invalid",
        "actions[0].type": "type_invalid",
        "actions[1].type": "type_invalid",
    }
    bad["actions"] = [{"type": "create_record", "config": {"collection": "posts"}}]
    details = alice.post("hooks", bad).json["details"]
    assert "actions[0].config.data" in {one["field"] for one in details}
    hook = make_hook(alice, ON_CREATE, copy("a"), condition="n > 1")
    path = f"hooks/{hook['id']}"
    changed = alice.patch(path, {"trigger": {"type": "manual"}, "condition": None}).json
    assert (changed["trigger"], changed["condition"]) == ({"type": "manual"}, None)
    assert changed["actions"] == hook["actions"]
    # Without an event there is no record whose field `n` would be.
    assert alice.patch(path, {"condition": "n > 1"}).status_code == 400


def test_hook_problems_have_places_of_the_hook(alice: Caller) -> None:
    def refused(config: Any) -> list[str]:
        hook = {"name": "x", "trigger": {"type": "manual"}}
        body = {**hook, "actions": [{"type": "create_record", "config": config}]}
        return [one["field"] for one in alice.post("hooks", body).json["details"]]

    data = {"data": {"steps[0]": "{{ nothing.here }}"}}
    assert refused({"collection": "posts", **data}) == ["actions[0].config.data.steps[0]"]
    assert refused({"collection": "posts", "data": {"x": "x" * 2**18}}) == ["actions"]


def test_hook_concurrent_changes_all_stay(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(alice, {"type": "manual"}, copy("a"))
    path, translated = f"hooks/{hook['id']}", hooks._to_workflow
    other = threading.Thread(target=alice.patch, args=[path, {"actions": [copy("b")]}])

    def meanwhile(body: Any, before: Any) -> Any:
        if "name" in body:
            other.start()
            other.join(0.3)
        return translated(body, before)

    monkeypatch.setattr(hooks, "_to_workflow", meanwhile)
    change = {"name": "new", "condition": "trigger.go = true"}
    assert alice.patch(path, change).status_code == 200
    other.join()
    found = alice.get(path).json
    assert (found["name"], found["condition"]) == ("new", "trigger.go = true")
    assert found["actions"] == [copy("b")]


def test_hook_conditions_compare_decimals_and_its_steps_change_lists(
    app: Flask, cast: Cast
) -> None:
    fields = [
        {"name": "amount", "type": "decimal"},
        {"name": "tags", "type": "text_list"},
        {"name": "seen", "type": "user", "multiple": True},
    ]
    make_collection(cast.root, schema=fields)
    change = {"tags": {"$add": ["{{ trigger.record.amount }}", "high"], "$remove": ["new"]}}
    change["seen"] = {"$add": [cast.bob.id]}
    update = {"collection": "posts", "record_id": "{{ trigger.record.id }}", "data": change}
    trigger = {**ON_CREATE, "condition": "amount > 100.01"}
    step = {"type": "update_record", "config": update}
    make_hook(cast.alice, trigger, step, condition="decimal(trigger.record.amount) < 1000")
    for amount in ("100.01", "100.02", "1000.00"):
        make_record(cast.alice, amount=amount, tags=["new", "old"], seen=[cast.alice.id])
    work(app)
    found = cast.alice.get("records/posts?sort=amount").json["items"]
    assert [one["tags"] for one in found] == [
        ["new", "old"],
        ["old", "100.02", "high"],
        ["new", "old"],
    ]
    assert found[1]["seen"] == [cast.alice.id, cast.bob.id]
