"""`@old` and `@changed`: rules that judge a change, and filters of webhooks and workflows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import OPEN, Caller, Cast, make_collection, make_record

SCHEMA = [
    {"name": "name", "type": "text", "unique": True},
    {"name": "state", "type": "select", "options": {"choices": ["open", "closed"]}},
    {"name": "owner", "type": "text"},
    {"name": "effort", "type": "number"},
    {"name": "notes", "type": "json"},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "loud", "type": "computed", "expression": "upper(name)", "return_type": "text"},
]


def make_tasks(cast: Cast, rule: str, **rules: Any) -> None:
    make_collection(cast.root, "tasks", SCHEMA, **{**OPEN, "update_rule": rule, **rules})


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        ("!@changed(state)", {"effort": 2}, {"state": "closed"}),
        ("@old.state = 'open'", {"state": "closed"}, None),
        ("@old.state = 'closed'", None, {"effort": 2}),
        ("effort > @old.effort", {"effort": 2}, {"effort": 0}),
        ("!@changed(notes) && !@changed(tags)", {"notes": {"a": 1}}, {"notes": {"a": 2}}),
        ("!@changed(notes) && !@changed(tags)", {"tags": ["a"]}, {"tags": ["b"]}),
        ("!@changed(loud)", {"effort": 2}, {"name": "other"}),
        ("@changed(effort)", {"effort": 2}, {"effort": 1, "name": "other"}),
        ("@old.effort + 1 = effort", {"effort": 2}, {"effort": 3}),
        ("!@changed(owner) || @has_role(admin)", {"owner": None}, {"owner": "x"}),
        (
            "@any(tasks, state = @old.state && @record.effort > @old.effort)",
            {"effort": 2},
            {"effort": 0},
        ),
        ("@any(tasks, name != @old.name)", None, {"effort": 2}),
        ("@old.loud = 'ONE' && loud != 'TWO'", {"effort": 2}, {"name": "two"}),
    ],
)
def test_update_rule_judges_change(
    cast: Cast, rule: str, allowed: dict[str, Any] | None, refused: dict[str, Any] | None
) -> None:
    make_tasks(cast, rule)
    body = {"state": "open", "effort": 1, "notes": {"a": 1}, "tags": ["a"]}
    task = make_record(cast.alice, "tasks", name="one", **body)
    url = f"records/tasks/{task['id']}"
    if refused:
        answer = cast.bob.patch(url, refused)
        assert (answer.status_code, answer.json["error"]) == (403, "rule_denied")
        assert cast.bob.get(url).json["effort"] == 1
        batch = {"records": [{"id": task["id"], "data": refused}]}
        assert cast.bob.patch("records/tasks/batch", batch).status_code == 403
    if allowed:
        assert cast.bob.patch(url, allowed).status_code == 200
        explained = {"operation": "update", "user_id": cast.bob.id, "record_id": task["id"]}
        told = cast.root.post("collections/tasks/rules/explain", explained)
        assert told.status_code == 200, told.json
    diff = {"rules": {"update_rule": f"({rule}) && name = 'one'"}}
    assert cast.root.post("collections/tasks/rules/diff", diff).status_code == 200


def test_hidden_record_is_not_found_whatever_is_sent(cast: Cast) -> None:
    make_tasks(cast, "!@changed(state)", view_rule="@owns_record()")
    task = make_record(cast.alice, "tasks", name="one", effort=1)
    make_record(cast.alice, "tasks", name="two")
    url = f"records/tasks/{task['id']}"
    for body in ({"effort": 2}, {"state": "closed"}, {"effort": "x"}, {"name": "two"}):
        assert cast.bob.patch(url, body).status_code == 404, body
    upsert = {"records": [{"name": "one", "effort": 5}]}
    assert cast.bob.post("records/tasks/batch?mode=upsert&on=name", upsert).status_code == 409
    assert cast.alice.get(url).json["effort"] == 1


def test_unique_value_is_not_told_to_who_may_not_change(cast: Cast) -> None:
    make_tasks(cast, "!@changed(name)", view_rule="true", list_rule="@owns_record()")
    task = make_record(cast.bob, "tasks", name="one")
    make_record(cast.alice, "tasks", name="two")
    for name in ("two", "three"):
        refused = cast.bob.patch(f"records/tasks/{task['id']}", {"name": name})
        assert (refused.status_code, refused.json["error"]) == (403, "rule_denied")


@pytest.mark.parametrize(
    ("rule", "field", "is_safe"),
    [
        ("owner = @request.auth.id && @changed(state)", "owner", False),
        ("@request.auth.id = owner && @old.state = 'open'", "owner", False),
        ("owner IN [@request.auth.id] && @changed(state)", "owner", False),
        ("concat(owner, '') = @request.auth.id && @changed(state)", "owner", False),
        ("@request.data.owner = @request.auth.id && @changed(state)", "owner", False),
        (
            "@any(tasks, name = @record.name && owner = @request.auth.id) && @changed(state)",
            "name",
            False,
        ),
        ("owner = @request.auth.id && @old.owner = @request.auth.id", "owner", True),
        ("@old.owner = @request.auth.id", "owner", True),
        ("owner = @request.auth.id && !@changed(owner)", "owner", True),
        ("created_by = @request.auth.id && @changed(state)", "owner", True),
        (
            "@any(tasks, name = @record.name && name = @old.name && owner = @request.auth.id)",
            "name",
            True,
        ),
    ],
)
def test_rule_that_its_caller_could_make_true_is_refused(
    cast: Cast, rule: str, field: str, is_safe: bool
) -> None:
    make_tasks(cast, "true")
    answer = cast.root.put("collections/tasks/rules", {"update_rule": rule})
    if is_safe:
        assert answer.status_code == 200, answer.json
        return
    [problem] = answer.json["details"]
    assert problem["code"] == "rule_invalid"
    assert problem["message"].startswith(f"A caller may write {field} and so pass")
    others = [name for name in ("name", "state", "owner", "effort") if name != field]
    fields = {"update_rule": rule, "update_fields": others}
    assert cast.root.put("collections/tasks/rules", fields).status_code == 200
    opened = cast.root.put("collections/tasks/rules", {"update_fields": "*"})
    assert [one["code"] for one in opened.json["details"]] == ["rule_invalid"]


def test_who_may_write_what_is_compared_is_warned_of(cast: Cast) -> None:
    make_tasks(cast, "true")
    body = {"rule": "owner = @request.auth.id", "collection": "tasks"}
    told = cast.root.post("rules/validate", {**body, "operation": "update"}).json
    assert told["valid"]
    assert [one["code"] for one in told["warnings"]] == ["unguarded_field"]
    assert cast.root.post("rules/validate", {**body, "operation": "view"}).json["warnings"] == []


@pytest.mark.parametrize("operation", ["list", "view", "create", "delete"])
def test_other_rules_have_no_old_record(cast: Cast, operation: str) -> None:
    make_tasks(cast, "true")
    for rule, name in (("@old.state = 'open'", "@old"), ("@changed(state)", "@changed")):
        refused = cast.root.put("collections/tasks/rules", {f"{operation}_rule": rule})
        assert refused.json["details"][0]["message"] == f"There is no change here, so no {name}."
    answer = cast.bob.get("records/tasks", query_string={"filter": "@old.state = 'open'"})
    assert answer.json["details"][0]["message"] == "There is no change here, so no @old."


def test_names_before_change_follow_renames(cast: Cast) -> None:
    make_tasks(cast, "@old.state = 'open' || @changed(state)")
    collection = cast.root.get("collections/tasks").json
    schema = [{**SCHEMA[1], "name": "status", "rename_from": "state"}]
    body = {"schema": [*SCHEMA[:1], *schema, *SCHEMA[2:]]}
    answer = cast.root.put(f"collections/{collection['id']}", body)
    assert answer.status_code == 200, answer.json
    rule = cast.root.get("collections/tasks/rules").json["update_rule"]
    assert rule == "@old.status = 'open' || @changed(status)"
    unknown = {"update_rule": "@old.status = 'opne'"}
    refused = cast.root.put("collections/tasks/rules", unknown)
    assert [one["code"] for one in refused.json["details"]] == ["unknown_choice"]


def deliveries(caller: Caller) -> list[str]:
    items = caller.get("webhooks/deliveries").json["items"]
    return [one["event"] for one in items]


def test_webhook_filter_sees_change(cast: Cast) -> None:
    make_tasks(cast, "true")
    hook = {"url": "https://hooks.example/x", "collection": "tasks", "events": ["create", "update"]}
    made = cast.alice.post("webhooks", {**hook, "filter": "@changed(state) && state = 'closed'"})
    assert made.status_code == 201, made.json
    task = make_record(cast.bob, "tasks", name="one", state="open")
    url = f"records/tasks/{task['id']}"
    sent = f"webhooks/{made.json['id']}/deliveries"
    for body, expected in (
        ({"effort": 2}, 0),
        ({"state": "closed"}, 1),
        ({"effort": 3}, 1),
        ({"state": "open"}, 1),
    ):
        assert cast.bob.patch(url, body).status_code == 200
        assert len(cast.alice.get(sent).json["items"]) == expected, body
    make_record(cast.bob, "tasks", name="two", state="closed")
    assert len(cast.alice.get(sent).json["items"]) == 2
    assert cast.alice.post("webhooks", {**hook, "filter": "@old.a.b = 1"}).status_code == 400


def test_webhook_filter_does_not_tell_what_its_owner_could_not_view(cast: Cast) -> None:
    make_tasks(cast, "true", view_rule="state = 'open' || @owns_record()")
    hook = {"url": "https://hooks.example/x", "collection": "tasks", "events": ["update"]}
    made = cast.alice.post("webhooks", {**hook, "filter": "@old.name = 'secret'"}).json
    task = make_record(cast.bob, "tasks", name="secret", state="closed")
    cast.bob.patch(f"records/tasks/{task['id']}", {"state": "open", "name": "public"})
    assert cast.alice.get(f"webhooks/{made['id']}/deliveries").json["items"] == []


def test_workflow_starts_on_change_of_field(cast: Cast) -> None:
    make_tasks(cast, "true")
    trigger = {
        "type": "event",
        "event": "records.update",
        "collection": "tasks",
        "condition": "@changed(state) && @old.state = 'open'",
    }
    step = {"name": "c", "type": "condition", "expression": "true"}
    flow = cast.alice.post("workflows", {"name": "w", "trigger": trigger, "steps": [step]})
    assert flow.status_code == 201, flow.json
    task = make_record(cast.bob, "tasks", name="one", state="open")
    url = f"records/tasks/{task['id']}"
    started = f"workflows/{flow.json['id']}/instances"
    for body, expected in (({"effort": 2}, 0), ({"state": "closed"}, 1), ({"state": "open"}, 1)):
        assert cast.bob.patch(url, body).status_code == 200
        assert len(cast.alice.get(started).json["items"]) == expected, body
