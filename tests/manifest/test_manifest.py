"""Definitions as a file: exported, planned, applied, and the same again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings

from app.collections import definitions
from app.manifest import document
from tests.builders import Caller, Cast, make_collection, make_record
from tests.collections.tables import agrees, wipe
from tests.collections.test_transfer import Item
from tests.collections.test_transfer import collections as some_collections
from tests.manifest.manifests import applied, apply, exported, planned, shape

HOOK_URL = "https://hooks.example.com/atrium"
FULL = """
version: 1
roles:
- name: auditor
  description: Reads all.
collections:
- name: customers
  schema:
  - {name: code, type: text, required: true, unique: true}
  - {name: email, type: email, pii: true}
- name: orders
  schema:
  - {name: customer, type: reference, collection: customers}
  - {name: price, type: number, default: 0}
  - {name: tax, type: computed, expression: price * 0.2, return_type: number}
  indexes:
  - fields: [customer, -price]
  rules:
    list_rule: "@has_role(auditor) || @owns_record()"
    view_rule: "true"
  tests:
  - {operation: list, as: auditor, expect: allow}
  - {operation: list, as: anonymous, expect: deny}
  - name: Owners see theirs
    operation: list
    as: {role: viewer, id: u1}
    given: {created_by: u1}
    expect: allow
accounts:
  acme:
    groups:
    - {name: finance, description: Sees the figures.}
    webhooks:
    - collection: orders
      url: https://hooks.example.com/atrium
      events: [create]
      headers: {X-Key: topsecret}
    workflows:
    - name: Announce
      trigger: {type: event, event: records.create, collection: orders}
      steps:
      - name: tell
        type: action
        action_type: send_webhook
        config: {url: "https://hooks.example.com/new", headers: {X-Key: topsecret}}
    hooks:
    - name: Nightly
      trigger: {type: schedule, cron: 0 4 * * *}
      condition: 1 = 1
      actions:
      - {type: send_webhook, config: {url: "https://hooks.example.com/nightly"}}
    providers:
    - category: auth_providers
      provider_name: google
      config: {client_id: one, client_secret: topsecret}
"""


def test_manifest_is_applied_once_and_undone(app: Flask, root: Caller) -> None:
    before = exported(root)
    plan = planned(root, FULL)
    assert plan["problems"] == []
    assert shape(plan) == [
        ("create", "collection", "customers"),
        ("create", "collection", "orders"),
        ("create", "role", "auditor"),
        ("create", "group", "finance"),
        ("create", "webhook", f"orders {HOOK_URL}"),
        ("create", "workflow", "Announce"),
        ("create", "hook", "Nightly"),
        ("create", "provider", "auth_providers google"),
    ]
    assert [one["passed"] for one in plan["tests"]] == [True] * 3
    assert any("CREATE TABLE col_orders" in text for text in plan["sql"])
    assert exported(root) == before  # a plan changes nothing

    done = applied(root, FULL)
    assert done["applied"]
    [secret] = done["secrets"]
    assert secret["name"] == f"orders {HOOK_URL}"
    assert len(secret["secret"]) >= 32
    assert "topsecret" not in str(exported(root))
    with app.app_context():
        assert [problem for one in definitions.get_all() for problem in agrees(one.table)] == []

    again = apply(root, FULL, plan["plan_hash"])
    assert again.json["applied"] is False
    assert planned(root, FULL)["has_changes"] is False
    whole = document.dump(exported(root))
    assert planned(root, whole)["operations"] == []

    undone = applied(root, document.dump(done["reverse"]))
    assert undone["applied"]
    assert exported(root) == before


@pytest.mark.long
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(items=some_collections())
def test_manifest_export_recreates_definitions_elsewhere(
    app: Flask, root: Caller, items: list[Item]
) -> None:
    wipe(app)
    made = root.post("collections/import", {"data": {"collections": items}})
    assert made.status_code == 200, made.json
    first = exported(root)
    assert planned(root, document.dump(first))["operations"] == []
    wipe(app)
    applied(root, document.dump(first))
    assert exported(root) == first
    with app.app_context():
        assert [problem for one in definitions.get_all() for problem in agrees(one.table)] == []


POSTS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "views", "type": "number", "default": 0},
    {"name": "state", "type": "select", "options": {"choices": ["draft", "live"]}},
]


@pytest.fixture
def posts(root: Caller, alice: Caller, bob: Caller) -> list[dict[str, Any]]:
    """Two posts of acme: one of alice, one of bob."""
    make_collection(root, "posts", POSTS, indexes=[{"fields": ["title", "-views"]}])
    return [
        make_record(alice, title="one", views=1, state="live"),
        make_record(bob, title="two", state="draft"),
    ]


def test_manifest_keeps_what_is_absent(root: Caller, posts: list[dict[str, Any]]) -> None:
    before = exported(root)
    views = "{name: views, type: number, default: 0}"
    for text in (
        "version: 1",
        "version: 1\ncollections:\n- name: posts",
        f"version: 1\ncollections:\n- {{name: posts, schema: [{views}]}}",
        "version: 1\naccounts:\n  acme: {}",
    ):
        assert planned(root, text)["has_changes"] is False, text
    assert exported(root) == before


def test_manifest_field_is_stated_as_a_whole(root: Caller, posts: list[dict[str, Any]]) -> None:
    text = "version: 1\ncollections:\n- name: posts\n  schema:\n  - {name: title, type: text}"
    plan = planned(root, text)
    [operation] = plan["operations"]
    assert [(one["field"], one["property"], one["after"]) for one in operation["changes"]] == [
        ("title", "required", False)
    ]
    applied(root, text)
    names = [spec["name"] for spec in root.get("collections/posts").json["schema"]]
    assert names == ["title", "views", "state"]


def test_manifest_makes_fields_searchable_and_goes_back(
    app: Flask, root: Caller, alice: Caller, posts: list[dict[str, Any]]
) -> None:
    before = exported(root)
    text = """
        version: 1
        collections:
        - name: posts
          schema:
          - {name: title, type: text, required: true, options: {search: true}}
          - {name: labels, type: text_list, options: {search: true}}
        - name: papers
          schema:
          - {name: body, type: text, options: {search: true}}
          rules: {list_rule: "true", view_rule: "true", create_rule: "true"}
        """
    plan = planned(root, text)
    assert (plan["problems"], exported(root)) == ([], before)
    assert shape(plan) == [("create", "collection", "papers"), ("update", "collection", "posts")]
    changes = plan["operations"][1]["changes"]
    assert ("title", "options", {"search": True}) in [
        (one["field"], one.get("property"), one.get("after")) for one in changes
    ]
    done = applied(root, text)
    make_record(alice, title="three", labels=["one of many"])
    make_record(alice, "papers", body="one sheet")

    def totals(*collections: str) -> list[int]:
        return [alice.get(f"records/{name}?search=one").json["total"] for name in collections]

    assert totals("posts", "papers") == [2, 1]
    assert planned(root, text)["operations"] == []
    whole = document.dump(exported(root))
    assert planned(root, whole)["operations"] == []

    applied(root, document.dump(done["reverse"]))
    assert exported(root) == before
    assert alice.get("records/posts?search=one").status_code == 400
    applied(root, whole)
    assert exported(root) == document.parse(whole).content
    assert totals("posts", "papers") == [1, 0]
    with app.app_context():
        assert [problem for one in definitions.get_all() for problem in agrees(one.table)] == []


def test_manifest_removal_reports_lost_data(
    root: Caller, alice: Caller, posts: list[dict[str, Any]]
) -> None:
    fields = """
        version: 1
        collections:
        - name: posts
          remove_fields: [state]
        """
    plan = planned(root, fields)
    assert plan["data_lost"] == [{"collection": "posts", "field": "state", "count": 2}]
    done = applied(root, fields)
    assert planned(root, fields)["has_changes"] is False
    assert "state" not in alice.get(f"records/posts/{posts[0]['id']}").json
    applied(root, document.dump(done["reverse"]))
    assert alice.get(f"records/posts/{posts[0]['id']}").json["state"] is None

    whole = "version: 1\ncollections:\n- {name: posts, removed: true}"
    plan = planned(root, whole)
    assert plan["data_lost"] == [{"collection": "posts", "field": None, "count": 2}]
    assert plan["sql"] == ["DROP TABLE col_posts"] or "DROP TABLE" in plan["sql"][-1]
    before = exported(root)
    done = applied(root, whole)
    assert root.get("collections/posts").status_code == 404
    assert planned(root, whole)["has_changes"] is False
    applied(root, document.dump(done["reverse"]))
    assert exported(root) == before


def test_manifest_plan_counts_access_changes_by_rules(
    root: Caller, posts: list[dict[str, Any]]
) -> None:
    text = """
        version: 1
        collections:
        - name: posts
          schema:
          - {name: owner, type: text}
          rules:
            list_rule: "@has_role(admin)"
            view_rule: ""
            update_rule: "owner = @request.auth.id"
        """
    plan = planned(root, text)
    assert plan["problems"] == []
    assert plan["access"] == [
        {"collection": "posts", "role": "viewer", "operation": "list", "gained": 0, "lost": 2},
        {"collection": "posts", "role": "anonymous", "operation": "view", "gained": 2, "lost": 0},
    ]
    assert [(one["field"], one["code"]) for one in plan["warnings"]] == [
        ("posts.update_rule", "not_counted"),
        ("posts.update_rule", "unguarded_field"),
    ]


def test_manifest_conflicting_records_are_problems_with_lines(
    root: Caller, posts: list[dict[str, Any]]
) -> None:
    text = """\
        version: 1
        collections:
        - name: posts
          schema:
          - {name: code, type: text, required: true}
          - {name: state, type: select, options: {choices: [draft]}}
        """
    plan = planned(root, text)
    found = {one["field"]: (one["code"], one["line"]) for one in plan["problems"]}
    assert found == {
        "collections.posts.schema.code": ("required", 5),
        "collections.posts.schema.state": ("in_use", 6),
    }
    answer = apply(root, text, plan["plan_hash"])
    assert answer.status_code == 400
    found = {one["field"]: (one["code"], one["line"]) for one in answer.json["details"]}
    assert found == {
        "collections.posts.schema.code": ("required", 5),
        "collections.posts.schema.state": ("in_use", 6),
    }


def test_manifest_rename_updates_webhooks_and_workflows(root: Caller, alice: Caller) -> None:
    make_collection(root, "posts", POSTS)
    hook = {"url": HOOK_URL, "collection": "posts", "events": ["create"]}
    webhook = alice.post("webhooks", hook).json
    alice.post("groups", {"name": "money"})
    before = exported(root)
    text = """
        version: 1
        collections:
        - name: articles
          rename_from: posts
          schema:
          - {name: heading, rename_from: title, type: text, required: true}
        accounts:
          acme:
            groups:
            - {name: finance, rename_from: money}
            webhooks:
            - {collection: articles, url: "https://hooks.example.com/atrium", enabled: false}
        """
    done = applied(root, text)
    [found] = alice.get("webhooks").json["items"]
    assert (found["id"], found["collection"], found["enabled"]) == (
        webhook["id"],
        "articles",
        False,
    )
    assert planned(root, text)["has_changes"] is False
    applied(root, document.dump(done["reverse"]))
    assert exported(root) == before


def test_manifest_secrets_are_masked_and_change_once(app: Flask, root: Caller) -> None:
    applied(root, FULL)
    masked = document.dump(exported(root))
    assert "topsecret" not in masked
    assert planned(root, masked)["has_changes"] is False
    changed = FULL.replace("topsecret", "another")
    assert shape(planned(root, changed)) == [
        ("update", "webhook", f"orders {HOOK_URL}"),
        ("update", "workflow", "Announce"),
        ("update", "provider", "auth_providers google"),
    ]
    assert "another" not in str(applied(root, changed))
    assert planned(root, changed)["has_changes"] is False


def test_manifest_apply_with_stale_plan_is_409(root: Caller, posts: list[dict[str, Any]]) -> None:
    text = "version: 1\ncollections:\n- {name: posts, rules: {list_rule: null}}"
    plan_hash = planned(root, text)["plan_hash"]
    assert apply(root, text.replace("null", '""'), plan_hash).json["error"] == "plan_stale"
    make_record(root.acting_in("acme"), title="three")  # records are no part of a plan
    assert planned(root, text)["plan_hash"] == plan_hash
    root.put("collections/posts/rules", {"view_rule": None})
    answer = apply(root, text, plan_hash)
    assert (answer.status_code, answer.json["error"]) == (409, "plan_stale")
    assert apply(root, text).json["applied"] is True
    assert apply(root, text, plan_hash).json["applied"] is False


def test_manifest_apply_failure_changes_nothing(root: Caller, alice: Caller) -> None:
    hooks = [
        {"url": f"{HOOK_URL}/{i}", "collection": "orders", "events": ["create"]} for i in range(19)
    ]
    for hook in hooks:
        assert alice.post("webhooks", hook).status_code == 201
    before = exported(root)
    more = "    - {collection: orders, url: https://hooks.example.com/more, events: [create]}\n"
    text = FULL.replace("    workflows:\n", f"{more}    workflows:\n")
    plan = planned(root, text)
    assert [(one["field"], one["code"]) for one in plan["problems"]] == [
        ("accounts.acme.webhooks[1]", "limit_reached")
    ]
    answer = apply(root, text, plan["plan_hash"])
    assert answer.status_code == 400
    assert answer.json["details"] == plan["problems"]
    assert exported(root) == before
    assert root.get("collections/orders").status_code == 404


def test_manifest_concurrent_applies_apply_once(app: Flask, root: Caller) -> None:
    plan_hash = planned(root, FULL)["plan_hash"]
    answers: list[Any] = []

    def act() -> None:
        answers.append(apply(root, FULL, plan_hash))

    threads = [threading.Thread(target=act) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status_code for one in answers] == [200] * 3, [one.json for one in answers]
    assert sorted(one.json["applied"] for one in answers) == [False, False, True]


def test_manifest_apply_is_audited_with_its_user(root: Caller) -> None:
    applied(root, FULL)
    entries = root.get("audit-logs?limit=500").json["items"]
    tables = {one["table_name"] for one in entries if one["user_id"] == root.id}
    assert {
        "collections",
        "roles",
        "groups",
        "webhooks",
        "workflows",
        "provider_settings",
    } <= tables
    assert "topsecret" not in str(entries)


def test_manifest_removal_of_group_or_role_in_use(root: Caller, alice: Caller, bob: Caller) -> None:
    role = root.post("roles", {"name": "auditor"}).json["id"]
    group = alice.post("groups", {"name": "finance"}).json["id"]
    alice.post(f"groups/{group}/members", {"user_id": bob.id})
    text = """
        version: 1
        roles:
        - {name: auditor, removed: true}
        collections:
        - {name: posts, schema: [{name: title, type: text}]}
        accounts:
          acme:
            groups:
            - {name: finance, removed: true}
        """
    for give, take in (
        (lambda: root.patch(f"users/{bob.id}", {"role_id": role}),
         lambda: root.patch(f"users/{bob.id}", {"role": "viewer"})),
        (lambda: alice.post("invitations", {"email": "x@acme.example", "role": "auditor"}),
         lambda: alice.delete(f"invitations/{alice.get('invitations').json['items'][0]['id']}")),
    ):  # fmt: skip
        assert give().status_code < 300
        plan = planned(root, text)
        assert [one["field"] for one in plan["problems"]] == ["roles.auditor"]
        assert apply(root, text, plan["plan_hash"]).status_code == 400
        assert take().status_code < 300
    applied(root, text)
    assert alice.get("groups?search=finance").json["total"] == 0
    entries = root.get("audit-logs?limit=500&table_name=group_members").json["items"]
    assert [one["operation"] for one in entries].count("DELETE") > 0


def test_manifest_indexes_on_filled_tables_are_built(
    app: Flask, root: Caller, posts: list[dict[str, Any]]
) -> None:
    text = """
        version: 1
        collections:
        - name: posts
          indexes:
          - {fields: [state, -views]}
          - {fields: [title], unique: true}
        """
    done = applied(root, text)
    with app.app_context():
        assert [problem for one in definitions.get_all() for problem in agrees(one.table)] == []
    assert planned(root, text)["has_changes"] is False
    applied(root, document.dump(done["reverse"]))
    assert root.get("collections/posts").json["indexes"] == [
        {"fields": ["title", "-views"], "unique": False}
    ]


def test_manifest_rules_name_attributes_that_it_defines(cast: Cast) -> None:
    root, team = cast.root, "@request.auth.attributes.team"
    text = """
        version: 1
        attributes:
          users:
            fields:
            - {name: team, type: select, options: {choices: [red, blue]}, visible_to: members}
        directory: {fields: [name, attributes.team]}
        collections:
        - name: posts
          schema: [{name: title, type: text}]
          rules: {list_rule: "@request.auth.attributes.team = %s"}
        """
    wrong = planned(root, text % "'green'")
    assert [(one["field"], one["code"]) for one in wrong["problems"]] == [
        ("collections.posts.rules.list_rule", "unknown_choice")
    ]
    assert planned(root, text % "'red'")["problems"] == []
    applied(root, text % "'red'")
    assert planned(root, text % "'red'")["has_changes"] is False
    value = {"attributes": {"team": "red"}}
    assert cast.alice.patch(f"account/users/{cast.bob.id}", value).status_code == 200
    make_record(root.acting_in("acme"), title="x")
    assert cast.bob.get("records/posts").json["total"] == 1
    # Renamed, it takes its values along: what follows and what names it anew lets in the same.
    renamed = """
        version: 1
        attributes:
          users: {fields: [{name: unit, rename_from: team, writable_by: self}]}
        collections:
        - {name: posts, rules: {view_rule: "@request.auth.attributes.unit = 'red'"}}
        """
    plan = planned(root, renamed)
    assert plan["problems"] == []
    assert {(one["role"], one["operation"]) for one in plan["access"]} == {("viewer", "view")}
    assert {one["field"] for one in plan["warnings"] if one["code"] == "self_written"} == {
        "posts.view_rule",
        "posts.list_rule",
    }
    (step,) = (one for one in plan["operations"] if one["kind"] == "attributes")
    followed = {one["field"]: one for one in step["changes"] if "before" in one}
    assert followed["collections.posts"]["before"] == f"{team} = 'red'"
    assert followed["collections.posts"]["after"] == "@request.auth.attributes.unit = 'red'"
    assert followed["directory"]["after"] == "unit"
    applied(root, renamed)
    rules = root.get("collections/posts/rules").json
    assert rules["list_rule"] == rules["view_rule"] == "@request.auth.attributes.unit = 'red'"
    (item,) = cast.bob.get("records/posts").json["items"]
    assert cast.bob.get(f"records/posts/{item['id']}").status_code == 200


def test_manifest_attributes_are_planned_applied_and_undone(root: Caller, bob: Caller) -> None:
    text = """
        version: 1
        attributes:
          users:
            fields:
            - {name: department, type: text, writable_by: self}
          accounts:
            fields:
            - {name: plan_code, type: text}
            - {name: score, type: number}
        """
    plan = planned(root, text)
    assert shape(plan) == [
        ("update", "attributes", "attributes.users"),
        ("update", "attributes", "attributes.accounts"),
    ]
    assert [len(one["changes"]) for one in plan["operations"]] == [1, 2]
    done = applied(root, text)
    fields = [{"name": "department", "type": "text", "writable_by": "self"}]
    assert exported(root)["attributes"]["users"] == {"fields": fields}
    assert not planned(root, text)["has_changes"]
    assert bob.patch("auth/me", {"attributes": {"department": "x"}}).status_code == 200
    renamed = """
        version: 1
        attributes:
          users: {fields: [{name: unit, rename_from: department}]}
          accounts: {remove_fields: [score]}
        """
    reverse = applied(root, renamed)["reverse"]
    assert bob.get("auth/me").json["attributes"] == {"unit": "x"}
    for manifest in (reverse, done["reverse"]):
        plan_hash = root.post("manifest/plan", {"manifest": manifest}).json["plan_hash"]
        body = {"manifest": manifest, "plan_hash": plan_hash}
        assert root.post("manifest/apply", body).status_code == 200
        left = root.get("attributes/users").json["fields"]
        assert [one["name"] for one in left] == (["department"] if manifest is reverse else [])
    wrong = "version: 1\nattributes:\n  users:\n    fields:\n    - {name: x, type: y}\n"
    [problem] = planned(root, wrong)["problems"]
    assert (problem["field"], problem["code"]) == ("attributes.users.x", "type_invalid")


def test_manifest_directory_is_planned_applied_and_undone(root: Caller) -> None:
    text = """
        version: 1
        roles:
        - {name: clerk}
        directory:
          rule: "@has_role(clerk) || @has_group(nobodys)"
          fields: [name, role]
        """
    plan = planned(root, text)
    assert ("update", "directory", "directory") in shape(plan)
    assert [one["line"] for one in plan["operations"]] == [5, 4]
    assert [(one["field"], one["code"]) for one in plan["warnings"]] == [
        ("directory.rule", "unknown_group")
    ]
    reverse = applied(root, text)["reverse"]
    assert reverse["directory"] == {"rule": "true", "fields": ["name"]}
    assert exported(root)["directory"] == {
        "rule": "@has_role(clerk) || @has_group(nobodys)",
        "fields": ["name", "role"],
    }
    assert not planned(root, text)["has_changes"]
    plan_hash = root.post("manifest/plan", {"manifest": reverse}).json["plan_hash"]
    body = {"manifest": reverse, "plan_hash": plan_hash}
    assert root.post("manifest/apply", body).status_code == 200
    assert root.get("directory/settings").json["rule"] == "true"
    wrong = "version: 1\ndirectory:\n  rule: '@has_role(nobody)'\n  fields: [x]\n"
    problems = planned(root, wrong)["problems"]
    assert [(one["field"], one["code"], one["line"]) for one in problems] == [
        ("directory.rule", "unknown_role", 3),
        ("directory.fields[0]", "invalid_option", 4),
    ]
