"""`readable_if` and `writable_if` of a field hide it, and keep it, beside the rules and lists."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.accounts.test_roles import make_role
from tests.builders import Caller, Cast, make_collection, make_record, make_user

SCHEMA: list[dict[str, Any]] = [
    {"name": "title", "type": "text"},
    {
        "name": "salary",
        "type": "number",
        "default": 1,
        "readable_if": "@has_role(admin) || @has_group(hr)",
        "writable_if": "@has_group(hr)",
    },
    {"name": "twice", "type": "computed", "expression": "salary * 2", "return_type": "number"},
    {"name": "appraisal", "type": "text", "readable_if": "@has_role(admin)"},
]


@pytest.fixture
def record(cast: Cast) -> dict[str, Any]:
    """A record of posts; alice is an admin, bob a user, and nobody in the group hr yet."""
    rules = {"update_rule": "true", "list_rule": "true", "view_rule": "true"}
    make_collection(cast.root, schema=SCHEMA)
    cast.root.put("collections/posts/rules", rules)
    root = cast.root.acting_in("acme")
    return make_record(root, title="a", salary=5, appraisal="n")


def codes(answer: Any) -> list[tuple[str, str]]:
    return [(detail["field"], detail["code"]) for detail in answer.json["details"]]


def change_right(root: Caller, field: str, right: str | None) -> None:
    id = root.get("collections/posts").json["id"]
    changes = {"schema": [{"name": field, "readable_if": right}]}
    answer = root.patch(f"collections/{id}", changes)
    assert answer.status_code == 200, answer.text


def test_unreadable_field_is_in_no_answer(cast: Cast, record: dict[str, Any]) -> None:
    make_collection(
        cast.root,
        "links",
        schema=[{"name": "post", "type": "reference", "collection": "posts"}],
    )
    make_record(cast.alice, "links", post=record["id"])
    url = f"records/posts/{record['id']}"
    assert cast.root.acting_in("acme").patch(url, {"salary": 77}).status_code == 200
    # Computed values have no history, and who may write a field finds it described.
    elsewhere = {"history": {"twice"}, "description": {"appraisal"}}
    for caller, sees in ((cast.alice, True), (cast.bob, False)):
        answers = {
            "list": caller.get("records/posts"),
            "view": caller.get(url),
            "expand": caller.get("records/links?expand=post"),
            "patch": caller.patch(url, {"title": "b"}),
            "history": caller.get(f"{url}/history"),
            "as of": caller.get(f"{url}?as_of={record['created_at']}"),
            "changes": caller.get("changes"),
            "export": caller.get("records/posts/export?format=jsonl"),
            "description": caller.get("/openapi.json?collections=1"),
        }
        for way, answer in answers.items():
            assert answer.status_code == 200, (way, answer.text)
            for name in {"salary", "twice", "appraisal"} - elsewhere.get(way, set()):
                assert (f'"{name}"' in answer.text) is sees, (way, name)


@pytest.mark.parametrize("name", ["salary", "twice", "appraisal"])
def test_unreadable_field_is_unknown_to_queries(
    cast: Cast, record: dict[str, Any], name: str
) -> None:
    queries = {
        "filter": f"records/posts?filter={name} IS NOT NULL",
        "sort": f"records/posts?sort={name}",
        "fields": f"records/posts?fields={name}",
        "group": f"records/posts/aggregate?functions=count()&group_by={name}",
        "function": f"records/posts/aggregate?functions=max({name})",
    }
    for way, query in queries.items():
        unknown = cast.bob.get(query.replace(name, "nothing"))
        refused = cast.bob.get(query)
        assert refused.status_code == unknown.status_code == 400, way
        assert refused.text.replace(name, "nothing") == unknown.text, way
    assert cast.alice.get(queries["filter"]).json["total"] == 1


def test_unwritable_field_is_read_only_and_keeps_its_value(
    cast: Cast, record: dict[str, Any]
) -> None:
    url = f"records/posts/{record['id']}"
    writes = {
        "create": cast.alice.post("records/posts", {"title": "x", "salary": 1}),
        "patch": cast.alice.patch(url, {"salary": 9, "title": "x"}),
        "unchanged": cast.alice.patch(url, {"salary": 5}),
        "put": cast.alice.put(url, {"title": "x", "salary": 9}),
        "unseen": cast.bob.patch(url, {"salary": 5}),
    }
    for way, answer in writes.items():
        assert answer.status_code == 400, (way, answer.text)
        assert codes(answer) == [("salary", "field_read_only")], way
    batch = {"records": [{"id": record["id"], "data": {"salary": 9}}]}
    assert codes(cast.alice.patch("records/posts/batch", batch)) == [("salary", "field_read_only")]
    assert cast.alice.put(url, {"title": "kept"}).json["salary"] == 5
    assert make_record(cast.alice, title="y")["salary"] == 1  # its default
    written = cast.bob.patch(url, {"appraisal": "unread"})
    assert written.status_code == 200
    assert "appraisal" not in written.json
    assert cast.alice.get(url).json["appraisal"] == "unread"


def test_right_follows_group_at_next_request(cast: Cast, record: dict[str, Any]) -> None:
    url = f"records/posts/{record['id']}"
    group = cast.alice.post("groups", {"name": "hr"}).json["id"]
    for _ in range(2):
        assert "salary" not in cast.bob.get(url).json
        assert cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id}).status_code == 200
        assert cast.bob.patch(url, {"salary": 6}).json["twice"] == 12
        assert cast.alice.delete(f"groups/{group}/users/{cast.bob.id}").status_code == 204
    # A group of this name in another account opens nothing here.
    other = cast.charlie.post("groups", {"name": "hr"}).json["id"]
    cast.charlie.post(f"groups/{other}/users", {"user_id": cast.charlie.id})
    assert "salary" not in cast.bob.get(url).json


def test_changed_right_applies_to_next_request(cast: Cast, record: dict[str, Any]) -> None:
    url = f"records/posts/{record['id']}"
    assert "appraisal" not in cast.bob.get(url).json
    change_right(cast.root, "appraisal", None)
    assert cast.bob.get(url).json["appraisal"] == "n"
    change_right(cast.root, "appraisal", "@is_superadmin()")
    assert "appraisal" not in cast.alice.get(url).json


@pytest.mark.parametrize(
    ("right", "code"),
    [
        ("salary > 3", "readable_if_invalid"),
        ("title = @request.auth.email", "readable_if_invalid"),
        ("@owns_record()", "readable_if_invalid"),
        ("@request.data.title = 'a'", "readable_if_invalid"),
        ("@now > '2020-01-01'", "readable_if_invalid"),
        ("@has_role(", "readable_if_invalid"),
        ("", "readable_if_invalid"),
        ("@request.auth.role", "readable_if_invalid"),
        ("@has_role(nobody_has_it)", "unknown_role"),
    ],
)
def test_right_over_more_than_caller_is_refused(cast: Cast, right: str, code: str) -> None:
    schema = [{"name": "title", "type": "text"}, {**SCHEMA[1], "readable_if": right}]
    answer = cast.root.post("collections", {"name": "posts", "schema": schema})
    assert (answer.status_code, codes(answer)) == (400, [("salary", code)])


def test_computed_field_is_readable_by_right_and_never_writable(cast: Cast) -> None:
    computed = {**SCHEMA[2], "expression": "length(title)", "readable_if": "@has_role(admin)"}
    refused = {**computed, "writable_if": "true"}
    schema = [SCHEMA[0], refused]
    answer = cast.root.post("collections", {"name": "posts", "schema": schema})
    assert codes(answer) == [("twice", "invalid_option")]
    make_collection(cast.root, schema=[SCHEMA[0], computed])
    make_record(cast.alice, title="abc")
    assert cast.alice.get("records/posts").json["items"][0]["twice"] == 3
    assert "twice" not in cast.bob.get("records/posts").json["items"][0]


def test_renamed_role_is_followed_and_named_role_is_not_deleted(app: Flask, cast: Cast) -> None:
    role = make_role(cast.root, "lead")
    schema = [SCHEMA[0], {"name": "plan", "type": "text", "readable_if": "@has_role(lead)"}]
    make_collection(cast.root, schema=schema)
    make_record(cast.alice, title="a")
    refused = cast.root.delete(f"roles/{role['id']}")
    assert refused.status_code == 409
    assert "collections.posts.plan.readable_if" in refused.text
    lead = Caller(app, make_user(app, cast.alice.account_id, "lead@acme.example", "lead"))
    assert cast.root.patch(f"roles/{role['id']}", {"name": "chief"}).status_code == 200
    stored = cast.root.get("collections/posts").json["schema"][1]
    assert stored["readable_if"] == "@has_role(chief)"
    assert "plan" in lead.get("records/posts").json["items"][0]
    assert "plan" not in cast.bob.get("records/posts").json["items"][0]


def test_explanation_names_unwritable_fields(cast: Cast, record: dict[str, Any]) -> None:
    question = {
        "operation": "update",
        "record_id": record["id"],
        "data": {"salary": 3},
        "user_id": cast.bob.id,
    }
    answer = cast.root.post("collections/posts/rules/explain", question)
    assert answer.json["allowed"] is False
    assert "writable_if does not let the caller write: salary" in answer.json["reason"]
