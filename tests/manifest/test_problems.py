"""What a manifest cannot be: all problems at once, each with its line."""

from __future__ import annotations

import time
from datetime import timedelta
from textwrap import dedent
from typing import Any

import pytest
import time_machine

from app import clock
from tests.builders import Caller, make_collection
from tests.manifest.manifests import apply, exported, planned

pytestmark = pytest.mark.one_database
TITLE = [{"name": "title", "type": "text"}]
# Texts that are no manifest, with the line and a part of the message.
UNREADABLE = [
    ("", 1, "empty"),
    ("- 1", 1, "mapping"),
    ("version: 1\nroles: [}", 2, "not valid YAML"),
    ("version: 1\nroles: a: b", 2, "not valid YAML"),
    ("version: 1\nversion: 1", 2, "twice"),
    ("version: 1\n---\nversion: 1", 2, "one document"),
    ("version: 1\nroles: &a []\ncollections: *a", 3, "Aliases"),
    ("version: 1\nroles: !!python/object:os.system x", 2, "Tags"),
    ("version: 1\n? [a]\n: b", 2, "name"),
    ("version: 1\nx: \x01", 1, "characters"),
    ('version: 1\nx: "\\0"', 2, "NUL"),
    ("version: 1\nx: 1e999", 2, "out of range"),
    ("version: 1\nx: " + "[" * 40 + "]" * 40, 2, "deeper"),
    ("version: 1\nx: [" + "1," * 100_001 + "]", 2, "100,000"),
    ("x" * (2 * 2**20 + 1), 1, "2 MiB"),
]


@pytest.mark.parametrize(("text", "line", "part"), UNREADABLE, ids=lambda value: str(value)[:30])
def test_manifest_text_that_is_malformed_is_manifest_invalid(
    root: Caller, text: str, line: int, part: str
) -> None:
    answer = root.post("manifest/plan", {"yaml": text})
    if len(text) > 2 * 2**20:
        assert answer.status_code == 422
        return
    assert answer.status_code == 400, answer.json
    [found] = answer.json["details"]
    assert (found["line"], found["code"]) == (line, "manifest_invalid")
    assert part in found["message"]


def test_manifest_yaml_bomb_is_400_within_2_seconds(root: Caller) -> None:
    lines = ["version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    start = time.thread_time()
    assert root.post("manifest/plan", {"yaml": "\n".join(lines)}).status_code == 400
    assert root.post("manifest/plan", {"yaml": "[" * 1_000_000}).status_code == 400
    assert time.thread_time() - start < 2


def test_manifest_unknown_keys_and_wrong_types_have_lines(root: Caller) -> None:
    text = """\
        version: 2
        colections: []
        collections:
        - name: posts
          schema:
          - name: title
            typ: text
          rules: {list_rule: 3}
          tests:
          - {operation: peek, as: {rol: x}, expect: maybe}
        accounts:
          acme:
            groups:
            - {nam: x}
            widgets: []
          globex: 3
        """
    answer = root.post("manifest/plan", {"yaml": dedent(text)})
    assert answer.status_code == 400
    assert [(one["line"], one["field"]) for one in answer.json["details"]] == [
        (1, "version"),
        (2, "colections"),
        (6, "collections.posts.schema.title.type"),
        (7, "collections.posts.schema.title.typ"),
        (8, "collections.posts.rules.list_rule"),
        (10, "collections.posts.tests[0].operation"),
        (10, "collections.posts.tests[0].as.rol"),
        (10, "collections.posts.tests[0].expect"),
        (14, "accounts.acme.groups[0].name"),
        (14, "accounts.acme.groups[0].nam"),
        (15, "accounts.acme.widgets"),
        (16, "accounts.globex"),
    ]


def of_account(text: str) -> str:
    return f"version: 1\naccounts:\n  acme:\n    {text}"


URL = "https://hooks.example.com/x"
# Manifests of the right shape, with the place, code and line of each problem.
WRONG = [
    ("version: 1\nroles:\n- name: viewer\n- {name: viewer}", [("roles.viewer", "conflict", 4)]),
    (
        "version: 1\nroles:\n- {name: admin, removed: true}",
        [("roles.admin", "conflict", 3)],
    ),
    ("version: 1\ncollections:\n- name: more", [("collections.more", "required", 3)]),
    (
        "version: 1\ncollections:\n- name: posts\n  schema:\n  - {name: x, type: odd}",
        [("collections.posts.schema.x.type", "type_invalid", 5)],
    ),
    (
        "version: 1\ncollections:\n- name: posts\n  rules:\n    list_rule: a ~~ b",
        [("collections.posts.rules.list_rule", "rule_invalid", 5)],
    ),
    (
        "version: 1\ncollections:\n- name: posts\n- name: posts",
        [("collections.posts.name", "name_duplicate", 3)],
    ),
    (
        "version: 1\ncollections:\n- {name: posts, removed: true}",
        [("collections.posts", "in_use", 3)],
    ),
    (
        "version: 1\ncollections:\n- {name: comments, rename_from: posts, schema: []}",
        [],  # it has its name already
    ),
    ("version: 1\naccounts:\n  nobody: {}", [("accounts.nobody", "account_missing", 3)]),
    (
        of_account(f"webhooks:\n    - collection: posts\n      url: {URL}"),
        [("accounts.acme.webhooks[0].events", "required", 5)],
    ),
    (
        of_account(
            f"webhooks:\n    - collection: posts\n      url: {URL}\n      events: [create]\n"
            "      filter: a ~~ b\n      headers: {X-Key: '***'}"
        ),
        [("accounts.acme.webhooks[0].filter", "filter_invalid", 8)],
    ),
    (
        of_account(
            f"webhooks:\n    - collection: posts\n      url: {URL}\n      events: [create]\n"
            "      headers: {X-Key: '***'}"
        ),
        [("accounts.acme.webhooks[0].headers", "required", 8)],
    ),
    (
        of_account(
            f"webhooks:\n    - {{collection: posts, url: {URL}, events: [create],"
            " include_pii: true}"
        ),
        [("accounts.acme.webhooks[0]", "forbidden", 5)],
    ),
    (
        of_account(
            "workflows:\n    - name: w\n      trigger: {type: manual}\n      steps:\n"
            "      - {name: a, type: odd}"
        ),
        [("accounts.acme.workflows.w.steps.a.type", "type_invalid", 8)],
    ),
    (
        of_account("hooks:\n    - name: h\n      trigger: {type: webhook}"),
        [("accounts.acme.hooks.h.trigger.type", "type_invalid", 6)],
    ),
    (
        of_account(
            "providers:\n    - category: auth_providers\n      provider_name: google\n"
            "      config: {client_id: a, client_secret: '***'}"
        ),
        [("accounts.acme.providers.google.config.client_secret", "invalid_option", 7)],
    ),
    (
        of_account(
            "providers:\n    - {category: auth_providers, provider_name: nobody, config: {}}"
        ),
        [("accounts.acme.providers.nobody.provider_name", "invalid_option", 5)],
    ),
]


@pytest.mark.parametrize(("text", "problems"), WRONG, ids=lambda value: str(value)[:60])
def test_manifest_problems_are_reported_at_once_and_change_nothing(
    root: Caller, text: str, problems: list[Any]
) -> None:
    make_collection(root, "posts", TITLE)
    reference = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(root, "comments", [reference])
    before = exported(root)
    plan = planned(root, text)
    found = [(one["field"], one["code"], one.get("line")) for one in plan["problems"]]
    assert found == problems
    if problems:
        answer = apply(root, text, plan["plan_hash"])
        assert (answer.status_code, answer.json["error"]) == (400, "validation_error")
        assert exported(root) == before


def test_manifest_failed_rule_test_blocks_apply(root: Caller) -> None:
    make_collection(root, "posts", TITLE, update_rule="@owns_record()")
    text = """\
        version: 1
        collections:
        - name: posts
          rules: {view_rule: "@has_group(finance)"}
          tests:
          - {operation: view, as: {groups: [finance]}, expect: allow}
          - {operation: view, as: admin, expect: allow, name: Admins see all}
          - {operation: update, as: {id: u1}, given: {created_by: u2}, expect: deny}
          - {operation: delete, expect: allow}
        """
    plan = planned(root, text)
    assert [(one["line"], one["passed"]) for one in plan["tests"]] == [
        (6, True),
        (7, False),
        (8, True),
        (9, False),
    ]
    assert [(one["code"], one["line"]) for one in plan["problems"]] == [
        ("rule_test_failed", 7),
        ("rule_test_failed", 9),
    ]
    answer = apply(root, text, plan["plan_hash"])
    assert answer.status_code == 400
    assert root.get("collections/posts/rules").json["view_rule"] == "true"


def test_manifest_removal_of_ambiguous_webhook_is_ambiguous(root: Caller, alice: Caller) -> None:
    for events in (["create"], ["delete"]):
        body = {"url": URL, "collection": "posts", "events": events}
        assert alice.post("webhooks", body).status_code == 201
    listed = f"{{collection: posts, url: {URL}}}"
    removed = f"{{collection: posts, url: {URL}, removed: true}}"
    plan = planned(root, of_account(f"webhooks: [{removed}]"))
    assert [one["code"] for one in plan["problems"]] == ["ambiguous"]
    assert apply(root, of_account(f"webhooks: [{listed}, {removed}]")).status_code == 200
    assert [one["events"] for one in alice.get("webhooks").json["items"]] == [["create"]]


@pytest.mark.parametrize("body", [{}, {"yaml": "version: 1", "manifest": {"version": 1}}])
def test_manifest_body_needs_yaml_or_manifest_not_both(root: Caller, body: dict[str, Any]) -> None:
    assert root.post("manifest/plan", body).json["details"][0]["field"] == "manifest"


def test_manifest_providers_require_recent_sign_in(root: Caller) -> None:
    text = of_account(
        "providers:\n    - category: auth_providers\n      provider_name: google\n"
        "      config: {client_id: a, client_secret: b}"
    )
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        answer = root.post("manifest/plan", {"yaml": text})
    assert (answer.status_code, answer.json["error"]) == (403, "recent_sign_in_required")


def test_manifest_export_of_chosen_accounts(root: Caller, alice: Caller) -> None:
    assert exported(root, "?accounts=")["accounts"] == {}
    assert [*exported(root, "?accounts=acme")["accounts"]] == ["acme"]
    assert root.get("manifest/export?accounts=nobody").status_code == 400
