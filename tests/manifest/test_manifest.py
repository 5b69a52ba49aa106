"""Definitions as a file: exported, planned, applied, and the same again."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.collections import definition
from app.manifest import document
from tests.builders import Caller
from tests.collections.tables import agrees

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


def planned(root: Caller, text: str) -> Any:
    answer = root.post("manifest/plan", {"yaml": dedent(text)})
    assert answer.status_code == 200, answer.json
    return answer.json


def apply(root: Caller, text: str, plan_hash: str | None = None) -> TestResponse:
    text = dedent(text)
    plan_hash = plan_hash or planned(root, text)["plan_hash"]
    return root.post("manifest/apply", {"yaml": text, "plan_hash": plan_hash})


def applied(root: Caller, text: str) -> Any:
    answer = apply(root, text)
    assert answer.status_code == 200, answer.json
    return answer.json


def exported(root: Caller, query: str = "") -> Any:
    answer = root.get(f"manifest/export{query}")
    assert answer.status_code == 200, answer.json
    return answer.json


def shape(plan: Any) -> list[tuple[str, str, str]]:
    return [(one["action"], one["kind"], one["name"]) for one in plan["operations"]]


@pytest.mark.both_databases
def test_a_manifest_is_applied_once_and_undone(app: Flask, root: Caller) -> None:
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
        assert [problem for one in definition.get_all() for problem in agrees(one.table)] == []

    again = apply(root, FULL, plan["plan_hash"])
    assert again.json["applied"] is False
    assert planned(root, FULL)["has_changes"] is False
    whole = document.dump(exported(root))
    assert planned(root, whole)["operations"] == []

    undone = applied(root, document.dump(done["reverse"]))
    assert undone["applied"]
    assert exported(root) == before
