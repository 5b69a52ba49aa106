"""Steps of workflows that an extension adds: from the definition to the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask import Flask

from app.extend import Caller, Refused, workflow_step
from app.extensions.loading import loaded
from app.extensions.registry import LoadError
from app.workflows.engine import control_steps, external_steps
from tests.builders import Cast, make_collection
from tests.console.browser import Browser
from tests.console.test_workflow_steps import Fields, opened
from tests.manifest.manifests import exported
from tests.workflows.running import (
    create,
    instance,
    let_pass,
    make_workflow,
    outputs,
    ran,
    start,
    statuses,
    work,
)

Seen = list[tuple[Any, ...]]


def charge(**values: Any) -> dict[str, Any]:
    """A step of the type that the extension of these tests adds."""
    return {"name": "pay", "type": "charge", "input": {"amount": "{{ trigger.n }}"}, **values}


def billing(function: Any) -> Any:
    """An extension with one step."""

    def shop() -> None:
        workflow_step("charge")(function)

    return shop


def test_step_gets_rendered_input_and_its_output_is_used(app: Flask, cast: Cast) -> None:
    seen: Seen = []

    def pay(caller: Caller, input: dict[str, Any]) -> dict[str, Any]:
        user, key = caller.user and caller.user.id, caller.idempotency_key
        seen.append((input, user, key))
        caller.records("posts").create({"title": "paid"})
        return {"receipt": f"r-{input['amount']}"}

    make_collection(cast.root)
    with loaded(billing(pay)):
        following = create("note", "{{ steps.pay.output.receipt }}")
        workflow = make_workflow(cast.alice, [charge(), following])
        found = ran(app, cast.alice, workflow, {"n": 5})
    assert statuses(found) == [("pay", "completed"), ("note", "completed")]
    assert outputs(found)["pay"] == {"receipt": "r-5"}
    ((input, user, key),) = seen
    assert (input, user) == ({"amount": 5}, cast.alice.id)
    assert key == external_steps.idempotency_key(found["id"], "pay#1")
    items = cast.alice.get("records/posts?sort=id").json["items"]
    assert [one["title"] for one in items] == ["paid", "r-5"]
    changes = cast.alice.get(f"account/audit-logs?record_id={items[0]['id']}").json["items"]
    assert changes[0]["actor"] == {"kind": "extension", "id": "shop", "name": "shop"}


def test_failed_step_writes_nothing_and_is_resumed(app: Flask, cast: Cast) -> None:
    keys: list[str | None] = []

    def pay(caller: Caller, input: dict[str, Any]) -> None:
        keys.append(caller.idempotency_key)
        caller.records("posts").create({"title": "paid"})
        if len(keys) == 1:
            raise Refused("amount", code="declined", message="secret")

    make_collection(cast.root)
    with loaded(billing(pay)):
        workflow = make_workflow(cast.alice, [charge()])
        found = ran(app, cast.alice, workflow, {"n": 5})
        assert found["status"] == "failed"
        assert found["error_message"].startswith("Refused")
        assert cast.alice.get("records/posts").json["items"] == []
        resumed = cast.alice.post(f"workflow-instances/{found['id']}/resume")
        assert resumed.status_code in (200, 202), resumed.json
        work(app)
        assert instance(cast.alice, found["id"])["status"] == "completed"
    assert len(cast.alice.get("records/posts").json["items"]) == 1
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_refused_write_fails_the_step(app: Flask, cast: Cast) -> None:
    def pay(caller: Caller, input: dict[str, Any]) -> None:
        caller.records("posts").create({"title": "kept back"})
        caller.records("posts").create({"nonsense": 1})

    make_collection(cast.root)
    with loaded(billing(pay)):
        found = ran(app, cast.alice, make_workflow(cast.alice, [charge()]))
    assert found["status"] == "failed"
    assert "nonsense" in found["error_message"]
    assert cast.alice.get("records/posts").json["items"] == []


def test_lost_worker_is_followed_by_another_that_writes_once(app: Flask, cast: Cast) -> None:
    ids: list[str] = []

    def pay(caller: Caller, input: dict[str, Any]) -> None:
        caller.records("posts").create({"title": str(len(ids))})
        if not ids:
            ids.append(id)
            let_pass(app, external_steps.OWN_SECONDS + 600)
            work(app)

    make_collection(cast.root)
    with loaded(billing(pay)):
        id = start(cast.alice, make_workflow(cast.alice, [charge()]))
        work(app)
        found = instance(cast.alice, id)
    assert found["status"] == "completed"
    assert statuses(found) == [("pay", "failed"), ("pay", "completed")]
    assert [one["title"] for one in cast.alice.get("records/posts").json["items"]] == ["1"]


def test_endless_step_fails(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_steps, "OWN_SECONDS", 0.3)

    def pay(caller: Caller, input: dict[str, Any]) -> None:
        while True:
            pass

    with loaded(billing(pay)):
        found = ran(app, cast.alice, make_workflow(cast.alice, [charge()]))
    assert (found["status"], found["error_message"]) == (
        "failed",
        "shop.pay took longer than 0.3 s.",
    )


def test_manifest_carries_the_step(app: Flask, cast: Cast) -> None:
    with loaded(billing(lambda caller, input: None)):
        workflow = make_workflow(cast.alice, [charge()])
        manifest = exported(cast.root, "?accounts=acme")
        cast.alice.delete(f"workflows/{workflow['id']}")
        plan = cast.root.post("manifest/plan", {"manifest": manifest}).json
        assert plan["problems"] == []
        body = {"manifest": manifest, "plan_hash": plan["plan_hash"]}
        assert cast.root.post("manifest/apply", body).status_code == 200
        (made,) = cast.alice.get("workflows").json["items"]
        assert made["steps"] == workflow["steps"]
        cast.alice.delete(f"workflows/{made['id']}")
    plan = cast.root.post("manifest/plan", {"manifest": manifest}).json
    assert [one["code"] for one in plan["problems"]] == ["type_invalid"]


WRONG = [
    ({"type": "chrage"}, "steps[0].type"),
    ({"input": 5}, "steps[0].input"),
    ({"amount": 5}, "steps[0].amount"),
    ({"input": {"a": "{{ nonsense }}"}}, "steps[0].input.a"),
]


@pytest.mark.parametrize(("change", "place"), WRONG)
def test_wrong_definition_is_refused(
    app: Flask, cast: Cast, change: dict[str, Any], place: str
) -> None:
    with loaded(billing(lambda caller, input: None)):
        body = {"name": "flow", "trigger": {"type": "manual"}, "steps": [charge(**change)]}
        answer = cast.alice.post("workflows", body)
    assert answer.status_code == 400, answer.json
    assert [one["field"] for one in answer.json["details"]] == [place]


def test_definition_stays_when_its_extension_is_gone(app: Flask, cast: Cast) -> None:
    with loaded(billing(lambda caller, input: None)):
        workflow = make_workflow(cast.alice, [charge()])
    path = f"workflows/{workflow['id']}"
    assert cast.alice.get(path).json["steps"] == workflow["steps"]
    found = ran(app, cast.alice, workflow)
    assert found["status"] == "failed"
    assert found["error_message"] == control_steps.TYPE_GONE.format("charge")
    assert cast.alice.put(path, {"name": "other"}).status_code == 200
    refused = cast.alice.put(path, {"steps": [charge(name="b")]})
    assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "type_invalid")
    browser = Browser(app, cast.alice)
    page = browser.get(f"workflows/{cast.alice.account_id}/workflow/{workflow['id']}/steps")
    assert "charge" in page.text


def test_console_shows_and_keeps_the_step(app: Flask, cast: Cast) -> None:
    with loaded(billing(lambda caller, input: None)):
        browser, path, api = opened(app, cast, [charge(), create("after")])
        page = browser.get(path).text
        assert '<option value="charge"' in page
        fields = Fields(page).values
        assert json.loads(fields["0.input"]) == {"amount": "{{ trigger.n }}"}
        before = cast.alice.get(api).json["steps"]
        browser.send(path, **{**fields, "0.input": '{"amount": 7}'})
        after = cast.alice.get(api).json["steps"]
    assert after == [{**before[0], "input": {"amount": 7}}, before[1]]


@pytest.mark.parametrize("name", ["action", "loop", "Charge", "a b", "1a", ""])
def test_name_of_a_step_is_checked_at_load(app: Flask, name: str) -> None:
    def shop() -> None:
        workflow_step(name)(lambda caller, input: None)

    with pytest.raises(LoadError), loaded(shop):
        pass
