"""What exists and is not in the file; what exports keep: tests of rules, settings and brands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.manifest import document
from tests.auth.test_operator_keys import operator
from tests.builders import Caller, Cast, make_collection
from tests.manifest.manifests import applied, apply, exported, planned, shape
from tests.manifest.test_commands import run

pytestmark = pytest.mark.both_databases
TITLE = [{"name": "title", "type": "text"}, {"name": "domain", "type": "text"}]
TESTED = """
version: 1
collections:
- name: tickets
  schema:
  - {name: title, type: text}
  - {name: state, type: text}
  rules: {view_rule: "title = 'a' && @has_role(viewer)"}
  tests:
  - {operation: view, as: viewer, given: {title: a, state: new}, expect: allow}
  - operation: view
    as: {role: viewer}
    given: {title: b}
    records: {tickets: [{title: a}]}
    expect: deny
"""


def strict(root: Caller, content: dict[str, Any]) -> list[tuple[str, str | None, str]]:
    answer = root.post("manifest/plan", {"manifest": content, "strict": True})
    assert answer.status_code == 200, answer.json
    return [(one["kind"], one["account"], one["name"]) for one in answer.json["drift"]]


def furnish(cast: Cast) -> None:
    """Make one thing of each kind."""
    root, alice = cast.root, cast.alice
    make_collection(root, "tickets", TITLE)
    tickets = root.get("collections/tickets").json["id"]
    index = {"indexes": [{"fields": ["title", "-created_at"]}]}
    assert root.patch(f"collections/{tickets}", index).status_code == 200
    make_collection(root, "notes", TITLE)
    assert root.post("roles", {"name": "auditor"}).status_code == 201
    assert root.put("rules/fragments", {"staff": "@has_role(auditor)"}).status_code == 200
    fields = {"fields": [{"name": "team", "type": "text"}, {"name": "desk", "type": "text"}]}
    assert root.put("attributes/users", fields).status_code == 200
    assert root.put("directory/settings", {"rule": "true", "fields": ["name"]}).status_code == 200
    product = {"name": "Desk", "accounts_may_brand": True, "url": "https://www.example.com"}
    assert root.put("product", product).status_code == 200
    assert root.put("plans", {"pro": {"flags": ["sla"]}, "free": {}}).status_code == 200
    applied(root, "version: 1\naccount_templates: {default: {version: 1}}")
    text = {"subject": "Join", "text": "Join: {{ link }}", "html": None, "reply_to": None}
    assert root.put("mail-templates/invitation/en", text).status_code == 200
    assert alice.post("groups", {"name": "agents"}).status_code == 201
    webhook = {"url": "https://hooks.example.com/x", "collection": "tickets", "events": ["create"]}
    assert alice.post("webhooks", webhook).status_code == 201
    workflow = {"name": "w", "trigger": {"type": "manual"}, "steps": []}
    assert alice.post("workflows", workflow).status_code == 201
    assert alice.patch("account", {"mfa_grace_days": 3}).status_code == 200
    assert alice.put("account/brand", {"accent_color": "#112233"}).status_code == 200


def test_export_planned_strictly_misses_nothing(cast: Cast) -> None:
    furnish(cast)
    whole = exported(cast.root)
    answer = cast.root.post("manifest/plan", {"manifest": whole, "strict": True}).json
    assert (answer["drift"], answer["has_changes"], answer["problems"]) == ([], False, [])
    lax = cast.root.post("manifest/plan", {"manifest": whole}).json
    assert lax["drift"] is None


def test_strict_plan_lists_each_thing_that_the_file_leaves_out(cast: Cast) -> None:
    furnish(cast)
    assert strict(cast.root, {"version": 1}) == [
        ("role", None, "auditor"),
        ("fragment", None, "staff"),
        ("collection", None, "notes"),
        ("collection", None, "tickets"),
        ("attribute", None, "users.team"),
        ("attribute", None, "users.desk"),
        ("directory", None, "rule"),
        ("directory", None, "fields"),
        ("product", None, "name"),
        ("product", None, "url"),
        ("product", None, "accounts_may_brand"),
        ("plan", None, "free"),
        ("plan", None, "pro"),
        ("account_template", None, "default"),
        ("mail_template", None, "invitation en"),
    ]
    found = strict(cast.root, {"version": 1, "accounts": {"acme": {}, "globex": {}}})
    assert [one for one in found if one[1]] == [
        ("settings", "acme", "mfa_grace_days"),
        ("brand", "acme", "accent_color"),
        ("group", "acme", "agents"),
        ("webhook", "acme", "tickets https://hooks.example.com/x"),
        ("workflow", "acme", "w"),
    ]


def test_strict_plan_lists_parts_of_what_the_file_names(cast: Cast) -> None:
    furnish(cast)
    item = {"name": "Tickets", "schema": [{"name": "title", "type": "text"}]}
    content = {
        "version": 1,
        "collections": [
            item,
            {"name": "memos", "rename_from": "notes", "remove_fields": ["title"]},
        ],
        "plans": {"pro": {}},
        "attributes": {
            "users": {"fields": [{"name": "squad", "type": "text", "rename_from": "team"}]}
        },
    }
    found = {(kind, name) for kind, _, name in strict(cast.root, content)}
    assert {one for one in found if one[0] in ("field", "index", "rule", "collection")} == {
        ("field", "tickets.domain"),
        ("index", "tickets title -created_at"),
        ("field", "notes.domain"),
        *(("rule", f"{name}.{rule}_rule") for name in ("tickets", "notes") for rule in RULED),
    }
    assert ("plan", "pro.flags") in found
    assert ("attribute", "users.desk") in found
    assert ("attribute", "users.team") not in found


RULED = ("list", "view", "create", "update", "delete")


def test_operator_key_is_told_of_definitions_alone(app: Flask, cast: Cast) -> None:
    furnish(cast)
    program = operator(app, cast.root, "definitions:read")
    found = {kind for kind, _, _ in strict(program, {"version": 1})}
    assert found == {"fragment", "collection", "attribute"}


def test_strict_command_ends_with_3(app: Flask, cast: Cast, tmp_path: Path) -> None:
    make_collection(cast.root, "tickets", TITLE)
    file = tmp_path / "atrium.yaml"
    file.write_text(
        "version: 1\ncollections:\n- {name: tickets, schema: [{name: title, type: text}]}\n"
    )
    done = run(app, "plan", file, "--strict")
    assert done.exit_code == 3, done.output
    assert "  field tickets.domain" in done.output.splitlines()
    assert run(app, "plan", file).exit_code == 0
    refused = run(app, "export", file)
    assert (refused.exit_code, "--force" in refused.output) == (1, True)
    assert run(app, "export", file, "--force").exit_code == 0
    assert run(app, "plan", file, "--strict", "--exit-code").exit_code == 0


def test_tests_of_rules_are_exported_and_not_lost(root: Caller) -> None:
    applied(root, TESTED)
    [tickets] = exported(root)["collections"]
    stated = document.parse(TESTED).content["collections"][0]
    assert tickets["tests"] == stated["tests"]
    assert planned(root, TESTED)["has_changes"] is False
    applied(root, "version: 1\ncollections: [{name: tickets, rules: {list_rule: 'true'}}]")
    assert exported(root)["collections"][0]["tests"] == stated["tests"]
    plan = planned(root, "version: 1\ncollections: [{name: tickets, tests: []}]")
    assert shape(plan) == [("update", "collection", "tickets")]
    assert plan["operations"][0]["changes"][0]["operation"] == "change_tests"
    done = applied(root, "version: 1\ncollections: [{name: tickets, tests: []}]")
    assert "tests" not in exported(root)["collections"][0]
    again = root.post("manifest/plan", {"manifest": done["reverse"]}).json
    body = {"manifest": done["reverse"], "plan_hash": again["plan_hash"]}
    assert root.post("manifest/apply", body).status_code == 200
    assert exported(root)["collections"][0]["tests"] == stated["tests"]


def test_stored_tests_follow_new_names(root: Caller) -> None:
    role = root.post("roles", {"name": "agent"}).json["id"]
    applied(root, TESTED.replace("viewer", "agent"))
    tickets = root.get("collections/tickets").json["id"]
    renamed = {
        "name": "issues",
        "schema": [{"name": "subject", "type": "text", "rename_from": "title"}],
        "remove_fields": ["state"],
    }
    plan = root.post(f"collections/{tickets}/plan", renamed)
    body = renamed | {"plan_hash": plan.json["plan_hash"]}
    assert root.patch(f"collections/{tickets}", body).status_code == 200
    assert root.patch(f"roles/{role}", {"name": "helper"}).status_code == 200
    whole = exported(root)
    [issues] = whole["collections"]
    assert issues["tests"] == [
        {"operation": "view", "as": "helper", "given": {"subject": "a"}, "expect": "allow"},
        {
            "operation": "view",
            "as": {"role": "helper"},
            "given": {"subject": "b"},
            "records": {"issues": [{"subject": "a"}]},
            "expect": "deny",
        },
    ]
    answer = root.post("manifest/plan", {"manifest": whole}).json
    assert (answer["problems"], answer["has_changes"]) == ([], False)
    assert [one["passed"] for one in answer["tests"]] == [True, True]


ACCOUNT = """
version: 1
product: {accounts_may_brand: true}
accounts:
  acme:
    settings:
      frame_ancestors: ["https://app.acme.example"]
      allowed_redirect_uris: ["https://app.acme.example/reset"]
      mfa_roles: [auditor]
    brand:
      name: Acme
      accent_color: "#123456"
      links: {reset_password: "https://app.acme.example/reset?token={token}"}
roles:
- name: auditor
"""


def test_settings_and_brand_of_an_account_are_applied_and_undone(
    root: Caller, alice: Caller
) -> None:
    done = applied(root, ACCOUNT)
    account = alice.get("account").json
    assert account["frame_ancestors"] == ["https://app.acme.example"]
    assert account["mfa_roles"] == ["auditor"]
    assert alice.get("account/brand").json["accent_color"] == "#123456"
    there = exported(root)["accounts"]["acme"]
    stated: Any = document.parse(ACCOUNT).content["accounts"]
    assert there["settings"] == stated["acme"]["settings"]
    assert there["brand"] == stated["acme"]["brand"]
    assert planned(root, ACCOUNT)["has_changes"] is False
    done["reverse"].pop("roles")
    done["reverse"].pop("product")
    again = root.post("manifest/plan", {"manifest": done["reverse"]}).json
    assert again["problems"] == []
    body = {"manifest": done["reverse"], "plan_hash": again["plan_hash"]}
    assert root.post("manifest/apply", body).status_code == 200
    assert not {"settings", "brand"} & {*exported(root)["accounts"].get("acme", {})}


def test_wrong_settings_and_brands_of_an_account_have_their_place(root: Caller) -> None:
    text = """
    version: 1
    accounts:
      acme:
        settings:
          frame_ancestors: ["http://app.acme.example/x"]
          mail_from: news@acme.example
        brand: {name: Acme}
    """
    plan = planned(root, text)
    assert [(one["field"], one["code"]) for one in plan["problems"]] == [
        ("accounts.acme.settings.frame_ancestors", "invalid_url"),
        ("accounts.acme.brand", "branding_off"),
    ]
    plan = planned(root, text.replace('"http://app.acme.example/x"', ""))
    assert ("accounts.acme.settings.mail_from", "not_verified") in [
        (one["field"], one["code"]) for one in plan["problems"]
    ]
    assert apply(root, text).status_code == 400


def test_template_gives_a_brand_and_settings(cast: Cast) -> None:
    text = """
    version: 1
    product: {accounts_may_brand: true}
    account_templates:
      default:
        version: 1
        settings:
          frame_ancestors: ["https://{{ account.slug }}.example.com"]
          allowed_redirect_uris: ["https://{{ account.slug }}.example.com/join"]
        brand:
          accent_color: "#123456"
          links: {invitation: "https://{{ account.slug }}.example.com/join?token={token}"}
    """
    applied(cast.root, text)
    made = cast.root.post("accounts", {"name": "New", "slug": "new-co"})
    assert made.status_code == 201, made.json
    there = cast.root.acting_in("new-co")
    brand = there.get("account/brand").json
    assert brand["accent_color"] == "#123456"
    assert brand["links"] == {"invitation": "https://new-co.example.com/join?token={token}"}
    assert there.get("account").json["frame_ancestors"] == ["https://new-co.example.com"]
    wrong = text.replace("version: 1\n        settings", "version: 2\n        settings")
    wrong = wrong.replace("/join?token", "/elsewhere?token")
    assert [one["field"] for one in planned(cast.root, wrong)["problems"]] == [
        "account_templates.default.brand.links.invitation"
    ]
