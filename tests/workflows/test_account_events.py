"""Workflows that events of users, groups and invitations start, or that wait for them."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.context import trigger_depth
from tests.builders import Caller, Cast
from tests.workflows.running import create, instance, make_workflow, start, work

ON_USER = {"type": "event", "event": "user.created"}


def started(owner: Caller, workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """The instances of a workflow, newest first."""
    found: list[dict[str, Any]] = owner.get(f"workflows/{workflow['id']}/instances").json["items"]
    return found


def add_user(owner: Caller, email: str, **headers: str) -> str:
    """A new user of the caller's account; returns the id."""
    answer = owner.post("account/users", {"email": email}, headers=headers)
    assert answer.status_code == 201, answer.json
    return str(answer.json["id"])


def test_workflow_hears_users_of_its_own_account(app: Flask, cast: Cast) -> None:
    workflow = make_workflow(cast.alice, [], ON_USER)
    add_user(cast.charlie, "zoe@globex.example")
    user_id = add_user(cast.alice, "zoe@acme.example")
    work(app)
    (found,) = started(cast.alice, workflow)
    trigger = instance(cast.alice, found["id"])["context"]["trigger"]
    assert (trigger["event"], trigger["account_id"]) == ("user.created", cast.alice.account_id)
    assert trigger["data"]["user_id"] == user_id
    assert trigger["actor"]["id"] == cast.alice.id
    assert "zoe" not in str(trigger)


def test_conditions_use_what_the_event_tells(app: Flask, cast: Cast) -> None:
    group = cast.alice.post("groups", {"name": "sales"}).json["id"]
    trigger = {"type": "event", "event": "group.member_added"}
    met = f"data.group_id = '{group}' && event.data.user_id != null && trigger.at != null"
    of_group = make_workflow(cast.alice, [], {**trigger, "condition": met})
    of_other = make_workflow(cast.alice, [], {**trigger, "condition": "data.group_id = 'other'"})
    cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id})
    assert [len(started(cast.alice, one)) for one in (of_group, of_other)] == [1, 0]


def test_step_waits_for_an_event_of_its_account(app: Flask, cast: Cast) -> None:
    step = {"name": "wait", "type": "wait_event", "event": "invitation.created", "timeout": "1h"}
    condition = "data.invitation_id != trigger.not"
    workflow = make_workflow(cast.alice, [{**step, "condition": condition}])
    id = start(cast.alice, workflow, {"not": "x"})
    work(app)
    assert instance(cast.alice, id)["status"] == "waiting"
    cast.charlie.post("invitations", {"email": "ida@globex.example"})
    made = cast.alice.post("invitations", {"email": "ida@acme.example"}).json["id"]
    work(app)
    found = instance(cast.alice, id)
    assert found["status"] == "completed"
    assert found["context"]["steps"]["wait"]["output"]["data"] == {"invitation_id": made}


@pytest.mark.parametrize(
    ("trigger", "code", "field"),
    [
        ({"event": "account.created"}, "invalid_option", "trigger.event"),
        ({"event": "user.nothing"}, "invalid_option", "trigger.event"),
        ({"event": "user.created", "collection": "posts"}, "unknown_field", "trigger.collection"),
        ({"event": "user.created", "condition": "name = 'x'"}, "expression_invalid", None),
        (
            {"event": "user.created", "condition": "@request.auth.role = 'admin'"},
            "expression_invalid",
            None,
        ),
    ],
)
def test_invalid_triggers_are_refused(
    alice: Caller, trigger: dict[str, str], code: str, field: str | None
) -> None:
    body = {"name": "flow", "trigger": {"type": "event", **trigger}, "steps": []}
    answer = alice.post("workflows", body)
    assert answer.status_code == 400, answer.json
    (problem,) = answer.json["details"]
    assert (problem["code"], problem["field"]) == (code, field or "trigger.condition")


def test_chain_of_account_events_stops_at_depth(app: Flask, cast: Cast) -> None:
    """A step that changes users by the API sends its depth, which the next event goes on from."""
    workflow = make_workflow(cast.alice, [], ON_USER)
    with app.app_context():
        deep, deeper = (trigger_depth.headers(depth) for depth in (7, 8))
    add_user(cast.alice, "deep@acme.example", **deep)
    assert started(cast.alice, workflow)[0]["status"] == "pending"
    add_user(cast.alice, "deeper@acme.example", **deeper)
    newest = started(cast.alice, workflow)[0]
    assert newest["status"] == "cancelled"
    assert "longer than 8" in newest["error_message"]


def test_hooks_hear_account_events_too(app: Flask, cast: Cast) -> None:
    action = {"type": "create_record", "config": create("x")["config"]}
    body = {
        "name": "hook",
        "trigger": ON_USER,
        "actions": [action],
        "condition": "data.user_id = 1",
    }
    hook = cast.alice.post("hooks", body)
    assert hook.status_code == 201, hook.json
    add_user(cast.alice, "hal@acme.example")
    assert cast.alice.get(f"hooks/{hook.json['id']}/executions").json["items"] == []
