"""Fields removed: by plan only, with everything that names them, and what history keeps."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.collections.test_updates import assert_agreement, field, revisions
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import make_workflow

SCHEMA = [
    field("title", required=True),
    field("views", "number", default=1),
    field("mail", "email", pii=True),
    field("author", "reference", collection="people"),
]


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    make_collection(root, "people")
    return make_collection(root, schema=SCHEMA)


def plan(root: Caller, made: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = root.post(f"collections/{made['id']}/plan", body)
    assert answer.status_code == 200, answer.json
    planned: dict[str, Any] = answer.json
    return planned


def apply(root: Caller, made: dict[str, Any], planned: dict[str, Any], **body: Any) -> TestResponse:
    return root.patch(f"collections/{made['id']}", body | {"plan_hash": planned["plan_hash"]})


def remove(root: Caller, made: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove fields; returns the plan."""
    planned = plan(root, made, remove_fields=list(names))
    assert apply(root, made, planned, remove_fields=list(names)).status_code == 200
    return planned


def test_definition_import_removes_fields_by_plan_only(cast: Cast, posts: dict[str, Any]) -> None:
    root = cast.root
    schema = [one for one in posts["schema"] if one["name"] != "views"]
    change: dict[str, Any] = {"schema": schema, "remove_fields": ["views"]}

    def imported(**more: Any) -> TestResponse:
        item = {"name": "posts", **change, **more}
        body = {"data": {"collections": [item]}, "strategy": "update"}
        return root.post("collections/import", body)

    refused = imported()
    assert (refused.status_code, refused.json["error"]) == (400, "plan_required")
    planned = plan(root, posts, **change)["plan_hash"]
    stale = imported(plan_hash=planned, indexes=[{"fields": ["title"]}])
    assert (stale.status_code, stale.json["error"]) == (409, "plan_stale")
    assert root.get("collections/posts").json["schema"] == posts["schema"]
    assert imported(plan_hash=planned).status_code == 200
    assert root.get("collections/posts").json["schema"] == schema


def test_field_removal_drops_values_and_readding_is_empty(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    root, alice = cast.root, cast.alice
    rules = {"list_fields": ["title", "views"], "update_fields": ["views"]}
    root.put("collections/posts/rules", rules)
    record = make_record(alice, title="a", views=5)
    make_record(cast.charlie, title="b")
    names = ["views", "author"]
    planned = plan(root, posts, remove_fields=names)
    assert planned["data_lost"] == [{"field": "author", "count": 0}, {"field": "views", "count": 2}]
    assert {(one["operation"], one["field"]) for one in planned["operations"]} == {
        ("remove_field", "views"),
        ("remove_field", "author"),
    }
    refused = root.patch(f"collections/{posts['id']}", {"remove_fields": names})
    assert (refused.status_code, refused.json["error"]) == (400, "plan_required")
    assert apply(root, posts, planned, remove_fields=names).status_code == 200
    assert revisions(app)[-1] == planned["sql"]
    assert_agreement(app)
    lost = {"views", "author"}
    found = alice.get(f"records/posts/{record['id']}").json
    assert found == {name: value for name, value in record.items() if name not in lost}
    kept = root.get("collections/posts/rules").json
    assert (kept["list_fields"], kept["update_fields"]) == (["title"], [])
    query = {"record_id": posts["id"], "operation": "DELETE", "table_name": "col_posts"}
    entries = root.get("audit-logs", query_string=query).json["items"]
    assert {
        (one["account_id"], one["column_name"], one["extra_metadata"]["count"]) for one in entries
    } == {(caller.account_id, "views", 1) for caller in (alice, cast.charlie)}
    # Without the values, that is how it was.
    body = planned["reverse"]
    again = plan(root, posts, **body)
    assert root.put(f"collections/{posts['id']}", body).status_code == 200
    assert root.get("collections/posts").json["schema"] == [
        *(one for one in posts["schema"] if one["name"] not in lost),
        *(one for one in posts["schema"] if one["name"] in lost),
    ]
    lost_again = plan(root, posts, **again["reverse"])["data_lost"]
    assert lost_again == planned["data_lost"]  # the default fills `views`
    assert_agreement(app)


def test_field_removal_applies_only_what_plan_contains(root: Caller, posts: dict[str, Any]) -> None:
    url = f"collections/{posts['id']}"
    planned = plan(root, posts, remove_fields=["views"])
    for body in ({"remove_fields": ["mail"]}, {"remove_fields": ["views", "mail"]}, {}):
        stale = apply(root, posts, planned, **body)
        assert (stale.status_code, stale.json["error"]) == (409, "plan_stale")
    assert root.put("collections/posts/rules", {"list_rule": ""}).status_code == 200
    for hash in (planned["plan_hash"], "1", "-", "1-" + "0" * 64):
        stale = root.patch(url, {"remove_fields": ["views"], "plan_hash": hash})
        assert (stale.status_code, stale.json["error"]) == (409, "plan_stale")
    assert root.get("collections/posts").json["schema"] == posts["schema"]
    # A hash guards other changes as well.
    longer = [*posts["schema"], field("more")]
    added = plan(root, posts, schema=longer)
    assert root.put(url, {"schema": longer, "plan_hash": added["plan_hash"]}).status_code == 200
    again = root.put(url, {"schema": longer, "plan_hash": added["plan_hash"]})
    assert (again.status_code, again.json["error"]) == (409, "plan_stale")


def test_field_removed_unique_comes_back_empty(root: Caller, alice: Caller) -> None:
    code = field("code", required=True, unique=True, default="x")
    made = make_collection(root, schema=[field("title"), code])
    for value in ("x", "y"):
        make_record(alice, code=value)
    back = remove(root, made, "code")["reverse"]
    assert plan(root, made, **back)["problems"] == []
    assert root.put(f"collections/{made['id']}", back).status_code == 200
    assert [one["code"] for one in alice.get("records/posts").json["items"]] == [None, None]
    assert alice.post("records/posts", {"code": "y"}).status_code == 201


REFUSED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"remove_fields": ["nope", "Title"]}, [("remove_fields", "unknown_field")] * 2),
    (
        {"remove_fields": ["views"], "schema": [field("views", "number")]},
        [("views", "invalid_option")],
    ),
]


def test_field_removal_with_contradictions_is_400(root: Caller, posts: dict[str, Any]) -> None:
    for body, expected in REFUSED:
        answer = root.post(f"collections/{posts['id']}/plan", body)
        assert answer.status_code == 400
        found = [(one["field"], one["code"]) for one in answer.json["details"]]
        assert set(expected) <= set(found)


def test_field_removal_reports_all_uses_at_once(cast: Cast, posts: dict[str, Any]) -> None:
    root = cast.root
    root.put("collections/posts/rules", {"list_rule": "views > 1", "view_rule": "title = 'a'"})
    refers = [field("post", "reference", collection="posts")]
    make_collection(root, "notes", refers, list_rule="post.views = 1", view_rule="post.title = 'a'")
    hook = make_webhook(cast.charlie, "http://127.0.0.1:9/", filter="views > 2 || title = 'a'")
    make_webhook(cast.charlie, "http://127.0.0.1:9/", filter="title = 'views'")
    make_webhook(cast.charlie, "http://127.0.0.1:9/", filter="views > 1", collection="notes")
    event = {"type": "event", "collection": "posts", "event": "records.create"}
    wait = {"name": "w", "type": "wait_delay", "duration": "1h"}
    mail = {"to": "a@b.example", "subject": "{{ trigger.record.views }}", "body": "x"}
    action = {"name": "m", "type": "action", "action_type": "send_email", "config": mail}
    flow = make_workflow(cast.alice, [action, wait], event, name="views")
    make_workflow(cast.alice, [{**action, "name": "n"}], {**event, "collection": "notes"})
    set_views = {"collection": "posts", "record_id": "x", "data": {"views": 1}}
    step = {"name": "s", "type": "action", "action_type": "update_record", "config": set_views}
    other = make_workflow(cast.charlie, [step], {"type": "manual"})
    answer = root.post(f"collections/{posts['id']}/plan", {"remove_fields": ["views"]})
    assert answer.status_code == 400
    assert {(one["field"], one["code"]) for one in answer.json["details"]} == {
        ("list_rule", "rule_invalid"),
        ("notes.list_rule", "rule_invalid"),
        (f"webhooks[{hook['id']}].filter", "field_in_use"),
        (f"workflows[{flow['id']}].steps.m", "field_in_use"),
        (f"workflows[{other['id']}].steps.s", "field_in_use"),
    }
    # The rules of the same request count instead of the present ones.
    schema = [*posts["schema"], field("twice", "computed", expression="views * 2")]
    schema[-1]["return_type"] = "number"
    body = {"schema": schema, "indexes": [{"fields": ["views", "title"]}]}
    assert root.put(f"collections/{posts['id']}", body).status_code == 200
    answer = root.post(f"collections/{posts['id']}/plan", {"remove_fields": ["views"]})
    assert {(one["field"], one["code"]) for one in answer.json["details"]} == {
        ("twice", "expression_invalid"),
        ("indexes[0]", "unknown_field"),
    }


def test_field_removal_while_running_instance_uses_it_is_400(
    cast: Cast, posts: dict[str, Any]
) -> None:
    mail = {"to": "a@b.example", "subject": "{{ trigger.record.views }}", "body": "x"}
    step = {"name": "m", "type": "action", "action_type": "send_email", "config": mail}
    event = {"type": "event", "collection": "posts", "event": "records.create"}
    flow = make_workflow(cast.alice, [step], event)
    make_record(cast.alice, title="a")  # starts a run
    steps = [{**step, "config": {**mail, "subject": "x"}}]
    changed = cast.alice.put(
        f"workflows/{flow['id']}", {"name": "flow", "trigger": event, "steps": steps}
    )
    assert changed.status_code == 200, changed.json
    path, removal = f"collections/{posts['id']}/plan", {"remove_fields": ["views"]}
    answer = cast.root.post(path, removal)
    assert [one["field"] for one in answer.json["details"]] == [f"workflows[{flow['id']}].steps.m"]
    (run,) = cast.alice.get("workflow-instances").json["items"]
    assert cast.alice.post(f"workflow-instances/{run['id']}/cancel").status_code == 200
    assert cast.root.post(path, removal).status_code == 200


def test_record_history_keeps_fields_of_one_name_apart(cast: Cast, posts: dict[str, Any]) -> None:
    root, alice = cast.root, cast.alice
    record = make_record(alice, title="a", views=5, mail="secret@acme.example")
    url = f"records/posts/{record['id']}"
    alice.patch(url, {"views": 6})
    remove(root, posts, "views", "mail")
    added = [field("views", "multi_select", options={"choices": ["x", "y"]}), field("mail")]
    assert root.patch(f"collections/{posts['id']}", {"schema": added}).status_code == 200
    last = alice.patch(url, {"views": ["y", "x"], "title": "b", "mail": "public"}).json
    items = alice.get(f"{url}/history").json["items"]
    changed = [{one["field"]: one["new_value"] for one in item["changes"]} for item in items]
    assert changed == [{"title": "b", "views": ["y", "x"], "mail": "public"}, {"title": "a"}]
    first = items[-1]
    past = alice.get(url, query_string={"as_of": record["created_at"]}).json
    assert (past["title"], past["views"], past["mail"]) == ("a", None, None)
    restored = alice.post(f"{url}/restore", {"audit_id": first["audit_id"]}).json
    assert (restored["title"], restored["views"], restored["mail"]) == ("a", None, None)
    items = changes_of_records(alice)
    values = [(one["record"]["title"], one["record"]["views"]) for one in items]
    assert values == [("a", None), ("a", None), ("b", ["y", "x"]), ("a", None)]
    assert items[2]["previous"] == items[1]["record"]
    assert items[2]["record"] == last
    # The removed field was personal, the new one is not.
    log = root.get("audit-logs/export", query_string={"format": "csv"}).text
    assert ("secret@" in log, "public" in log) == (False, True)
    seen = root.get("audit-logs", query_string={"record_id": record["id"]}).json["items"]
    shown = [one["new_value"] for one in seen if one["column_name"] == "mail"]
    assert sorted(shown, key=str) == ["***", None, "public"]


def test_schema_update_without_a_field_keeps_values_and_warns(root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field("title"), field("views", "number")])
    path, record = f"collections/{made['id']}", make_record(alice, title="a", views=1)
    message = (
        "The schema leaves out {}, which stays as it is. Name it in remove_fields to remove it."
    )
    warning = [message.format("views")]
    sent = {"schema": [field("title"), field("more")]}
    assert plan(root, made, **sent)["warnings"] == warning
    for method, body, warnings in [
        ("PUT", sent, warning),
        ("PUT", {"schema": [field("title"), field("more"), field("views", "number")]}, None),
        ("PATCH", {"schema": [field("more", required=False)]}, [message.format("title"), *warning]),
        ("PATCH", {"schema": [{"name": "more", "options": {"max_length": 9}}]}, None),
        ("PATCH", {"name": "posts"}, None),
    ]:
        answer = root(method, path, body)
        assert answer.status_code == 200, answer.json
        assert answer.json.get("warnings") == warnings
        assert {"title", "views"} <= {spec["name"] for spec in answer.json["schema"]}
    assert alice.get(f"records/posts/{record['id']}").json["views"] == 1
