"""Warnings of rules that are valid, but say too much, too little, or cost too much."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.collections import trials
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.console.browser import Browser

SCHEMA = [
    {"name": "title", "type": "text", "options": {"index": True}},
    {"name": "price", "type": "number"},
    {"name": "owner", "type": "user"},
]


def warned(root: Caller, rule: str, operation: str = "view") -> list[tuple[str, int]]:
    body = {"rule": rule, "collection": "posts", "operation": operation}
    answer = root.post("rules/validate", body).json
    assert answer["valid"], answer
    return [(one["code"], one["position"]) for one in answer["warnings"]]


@pytest.fixture
def posts(root: Caller) -> str:
    return str(make_collection(root, schema=SCHEMA)["id"])


@pytest.mark.usefixtures("posts")
def test_validation_warns_of_what_always_or_never_holds(root: Caller) -> None:
    table = {
        "true || title = 'a'": [("always_true", 0)],
        "price = 1 && price = 2": [("always_false", 0)],
        "title = 'a' || (price > 3 && price < 2)": [("always_false", 15)],
        "owner = @request.auth.id && (price = null || price != null)": [("always_true", 28)],
        "@has_role(admin) && @has_role(viewer)": [("always_false", 0)],
        "owner = @request.auth.id": [],
        "price > 3 || price <= 3": [],
        "@has_role(admin)": [],
    }
    for rule, expected in table.items():
        assert warned(root, rule) == expected, rule


@pytest.mark.usefixtures("posts")
def test_validation_warns_of_large_lists_without_an_index(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "price = 1 || title = 'a'"
    assert warned(cast.root, rule, "list") == []
    monkeypatch.setattr(trials, "MANY_RECORDS", 2)
    make_record(cast.alice, title="a")
    make_record(cast.charlie, title="a")
    assert warned(cast.root, rule, "list") == []  # one of each account
    make_record(cast.alice, title="a")
    table = {
        rule: [("no_index", 0)],
        "price = 1": [("no_index", 0)],
        "price IN [1, 2] && owner != null": [("no_index", 0)],
        "price = 1 && title = 'a'": [],
        "title = 'a'": [],
        "owner = @request.auth.id": [],
        "created_by = @request.auth.id": [("no_index", 0)],
        "@has_role(admin) || title = 'a'": [],
        "price != 1": [],
    }
    for text, expected in table.items():
        assert warned(cast.root, text, "list") == expected, text
        assert warned(cast.root, text, "view") == [], text


def test_changes_and_plans_warn(cast: Cast, posts: str) -> None:
    never = {"view_rule": "price = 1 && price = 2"}
    answer = cast.root.put("collections/posts/rules", never).json
    assert [(one["field"], one["code"]) for one in answer["warnings"]] == [
        ("posts.view_rule", "always_false")
    ]
    assert "warnings" not in cast.root.get("collections/posts/rules").json
    text = "posts.view_rule: This never holds."
    added = {"schema": [{"name": "more", "type": "text"}]}
    assert cast.root.post(f"collections/{posts}/plan", added).json["warnings"] == [
        *(
            f"The schema leaves out {one['name']}, which stays as it is. Name it in remove_fields"
            " to remove it."
            for one in SCHEMA
        ),
        text,
    ]
    assert cast.root.patch(f"collections/{posts}", added).json["warnings"] == [text]
    fixed = cast.root.put("collections/posts/rules", {"view_rule": "price = 1"}).json
    assert "warnings" not in fixed
    collection = {"name": "posts", "schema": SCHEMA, "rules": {**OPEN, "list_rule": "1 = 2"}}
    manifest = {"version": 1, "collections": [collection]}
    planned = cast.root.post("manifest/plan", {"manifest": manifest}).json["warnings"]
    assert [(one["field"], one["code"]) for one in planned] == [("posts.list_rule", "always_false")]


def test_new_collections_warn_of_rules_that_open_them(app: Flask, cast: Cast) -> None:
    root, account = cast.root, {"X-Account-ID": cast.alice.account_id}
    body = {"name": "posts", "schema": SCHEMA, **OPEN, "list_rule": "true || title = 'x'"}
    answer = root.post("collections", body)
    assert answer.status_code == 201, answer.json
    [warning] = answer.json["warnings"]
    assert warning.startswith("posts.list_rule: This always holds, also for callers who are not")
    assert app.test_client().get("/api/v1/records/posts", headers=account).status_code == 200
    view = {"name": "shown", "type": "view", "from": "posts", "fields": ["title"]}
    made = root.post("collections", {**view, "view_rule": "1 = 2"}).json
    assert made["warnings"] == ["shown.view_rule: This never holds."]
    changed = root.patch(f"collections/{made['id']}", {"list_rule": "1 = 1", "view_rule": "true"})
    assert [one[:31] for one in changed.json["warnings"]] == ["shown.list_rule: This always ho"]
    closed = root.put("collections/posts/rules", {"list_rule": "true"}).json
    assert "warnings" not in closed
    assert app.test_client().get("/api/v1/records/posts", headers=account).status_code == 401


def test_console_shows_warnings(app: Flask, cast: Cast, posts: str) -> None:
    browser = Browser(app, cast.root)
    path = f"collections/{posts}/rules"
    checked = browser.send(f"{path}/view/check", text="title = 'a' && 1 = 2").text
    assert "Valid rule." in checked
    assert "This never holds." in checked
    form: dict[str, Any] = {f"{one}_choice": "signed_in" for one in ("list", "create", "update")}
    form |= {"view_choice": "expression", "view_rule": "1 = 2", "delete_choice": "closed"}
    form |= {f"{one}_which": "all" for one in ("list", "view", "create", "update")}
    page = browser.send(f"{path}/preview", **form, version="1").text
    assert "This never holds." in page
