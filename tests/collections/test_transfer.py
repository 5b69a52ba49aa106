"""Definitions exported and imported: all or nothing, and the same again."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions
from tests.builders import OPEN, Caller, make_collection, make_record
from tests.collections.tables import agrees, wipe

TITLE = {"name": "title", "type": "text"}
Item = dict[str, Any]


def reference(name: str, to: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "reference", "collection": to, **more}


def item(name: str, *schema: dict[str, Any], **rules: Any) -> Item:
    return {"name": name, "schema": list(schema) or [TITLE], "rules": rules}


def send(root: Caller, *items: Item, strategy: str | None = None) -> TestResponse:
    body: dict[str, Any] = {"data": {"collections": list(items)}}
    return root.post("collections/import", body | ({"strategy": strategy} if strategy else {}))


def exported(root: Caller, query: str = "") -> list[Item]:
    answer = root.get(f"collections/export{query}")
    assert answer.status_code == 200, answer.json
    found: list[Item] = answer.json["collections"]
    return found


def disagreements(app: Flask) -> list[str]:
    with app.app_context():
        found = [problem for one in definitions.get_all() for problem in agrees(one.table)]
        db.db.session.remove()
        return found


# --- The same again -------------------------------------------------------------------------------

NAMES = [f"col{letter}" for letter in "ABCD"]
FIELDS = [f"f{number}" for number in range(4)]
rules = st.sampled_from([None, "", "true"])


@st.composite
def fields(draw: st.DrawFn, name: str, names: list[str]) -> dict[str, Any]:
    """A field that can be."""
    kind = draw(st.sampled_from(["text", "number", "json", "reference", "date"]))
    required = draw(st.booleans())
    made: dict[str, Any] = {"name": name, "type": kind, "required": required}
    if kind == "reference":
        actions = ["restrict", "cascade"] + ([] if required else ["set_null"])
        made |= {"collection": draw(st.sampled_from(names))}
        made |= {"on_delete": draw(st.sampled_from(actions))}
    elif kind != "json":
        made |= {"unique": draw(st.booleans()), "options": {"index": draw(st.booleans())}}
    if kind == "text":
        made["options"] |= draw(st.sampled_from([{}, {"max_length": 40}, {"pattern": "(?s)^.*$"}]))
        texts = st.text("ab'\"%\\é🎈:{}\n", min_size=int(required), max_size=9)
        made["default"] = draw(st.none() | texts)
    if kind == "number":
        made["default"] = draw(st.none() | st.integers(-(2**63), 2**63 - 1))
    return made


@st.composite
def indexes_of(draw: st.DrawFn, schema: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some indexes over two fields or more."""
    names = [one["name"] for one in schema if one["type"] != "json"] + ["updated_at", "created_by"]
    lists = st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True)
    fields = draw(st.lists(lists, max_size=3, unique_by=tuple))
    signs = st.sampled_from(["", "-"])
    return [
        {"fields": [draw(signs) + name for name in one], "unique": draw(st.booleans())}
        for one in fields
    ]


@st.composite
def collections(draw: st.DrawFn) -> list[Item]:
    """Some collections that may refer to each other."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    made = []
    for name in names:
        own = draw(st.lists(st.sampled_from(FIELDS), unique=True))
        schema = [draw(fields(one, names)) for one in own]
        lists = st.just("*") | st.lists(st.sampled_from(own), unique=True) if own else st.just("*")
        opened: dict[str, Any] = {rule: draw(rules) for rule in OPEN}
        opened |= {key: draw(lists) for key in ("list_fields", "create_fields")}
        indexes = draw(indexes_of(schema))
        made.append({"name": name, "schema": schema, "rules": opened, "indexes": indexes})
    return made


@pytest.mark.long
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(items=collections())
def test_definition_export_and_import_round_trip(
    app: Flask, root: Caller, items: list[Item]
) -> None:
    wipe(app)
    made = send(root, *items)
    assert made.status_code == 200, made.json
    assert disagreements(app) == []
    first = root.get("collections/export").json
    assert [one["name"] for one in first["collections"]] == sorted(one["name"] for one in items)
    for sent in items:
        kept = next(one for one in first["collections"] if one["name"] == sent["name"])
        assert [
            {k: f[k] for k in s} for f, s in zip(kept["schema"], sent["schema"], strict=True)
        ] == (sent["schema"])
        assert {key: kept["rules"][key] for key in sent["rules"]} == sent["rules"]
        assert kept["indexes"] == sent["indexes"]
    again = root.post("collections/import", {"data": first, "strategy": "update"})
    assert (again.status_code, again.json["migrations_created"]) == (200, [])
    wipe(app)
    assert root.post("collections/import", {"data": first}).status_code == 200
    second = root.get("collections/export").json
    assert second | {"exported_at": None} == first | {"exported_at": None}
    assert disagreements(app) == []


# --- References in any order ----------------------------------------------------------------------


def test_definition_import_with_circular_references(
    app: Flask, root: Caller, alice: Caller
) -> None:
    ring = [
        item("posts", reference("author", "AUTHORS"), reference("next", "posts"), **OPEN),
        item("authors", reference("best", "posts", on_delete="set_null"), TITLE, **OPEN),
    ]
    made = send(root, *ring)
    assert made.status_code == 200, made.json
    assert disagreements(app) == []
    assert [one["schema"][0]["collection"] for one in exported(root)] == ["posts", "authors"]
    author = make_record(alice, "authors")["id"]
    post = make_record(alice, "posts", author=author)["id"]
    assert alice.patch(f"records/authors/{author}", {"best": post}).status_code == 200
    assert alice.delete(f"records/authors/{author}").status_code == 409
    assert alice.delete(f"records/posts/{post}").status_code == 204
    descriptions = [one["description"] for one in root.get("migrations").json["revisions"]]
    assert {"create collection posts", "create collection authors"} <= set(descriptions)
    ids = [one["revision"] for one in root.get("migrations").json["revisions"]]
    created = made.json["migrations_created"]
    assert ids[: len(created)] == created[::-1]


# --- What exists ----------------------------------------------------------------------------------


def test_definition_import_of_existing_collection_per_strategy(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root, "Posts")
    make_record(alice)
    wider = item("posts", TITLE, {"name": "n", "type": "number", "required": True, "default": 1})
    wider["rules"] = {"list_rule": None}
    more = item("more", reference("post", "posts"))
    for strategy in (None, "error"):
        refused = send(root, wider, more, strategy=strategy)
        assert (refused.status_code, refused.json["field"]) == (409, "name")
        assert [one["field"] for one in refused.json["details"]] == ["Posts"]
    assert root.get("collections/names").json["names"] == ["Posts"]
    skipped = send(root, wider, more, strategy="skip").json
    assert [one["status"] for one in skipped["collections"]] == ["skipped", "imported"]
    assert (skipped["imported_count"], skipped["skipped_count"]) == (1, 1)
    assert root.get("collections/Posts").json == made | {"record_count": 1, "records_count": 1}
    updated = send(root, wider, more, strategy="update").json
    assert [one["status"] for one in updated["collections"]] == ["updated", "updated"]
    assert (updated["success"], updated["updated_count"], updated["failed_count"]) == (True, 2, 0)
    assert len(updated["migrations_created"]) == 1
    assert alice.get("records/posts").status_code == 403
    rules = root.get("collections/posts/rules").json
    assert (rules["list_rule"], rules["view_rule"]) == (None, "true")
    assert disagreements(app) == []


BAD: list[tuple[list[Item], list[tuple[str, str]]]] = [
    ([item("ok1"), item("ok1")], [("ok1.name", "name_duplicate")]),
    ([item("ok1"), item("1st")], [("1st.name", "name_invalid")]),
    ([item("ok1"), item("import")], [("import.name", "name_reserved")]),
    ([item("ok1", {"name": "f", "type": "wat"})], [("ok1.f", "type_invalid")]),
    ([item("ok1", reference("f", "nowhere"))], [("ok1.f", "reference_collection_required")]),
    (
        [
            item("ok1", reference("f", "nowhere"), list_rule="f.title = 'a'"),
            item("ok2", reference("g", "ok1"), list_rule="g.f.title = 'a'", view_rule="g ="),
        ],
        [("ok1.f", "reference_collection_required"), ("ok2.view_rule", "rule_invalid")],
    ),
    ([item("ok1", list_fields=["x"])], [("ok1.list_fields", "unknown_field")]),
    (
        [item("posts", {"name": "f", "type": "text"})],
        [("posts.title", "field_deletion_not_allowed")],
    ),
    (
        [item("posts", {"name": "title", "type": "date"})],
        [("posts.title", "type_change_not_allowed")],
    ),
    ([item("ok1"), item("posts", TITLE | {"required": True})], [("posts.title", "required")]),
    (
        [
            item("ok1", {"name": "id", "type": "text"}),
            item("ok2", {"name": "f", "type": "text", "default": 5}),
        ],
        [("ok1.id", "name_reserved"), ("ok2.f", "invalid_type")],
    ),
]


@pytest.mark.parametrize(("items", "expected"), BAD)
def test_definition_import_with_one_error_imports_nothing(
    app: Flask, root: Caller, alice: Caller, items: list[Item], expected: list[tuple[str, str]]
) -> None:
    make_collection(root)
    make_record(alice)
    before, revisions = exported(root), root.get("migrations").json
    answer = send(root, item("good"), *items, strategy="update")
    assert answer.status_code == 400, answer.json
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == expected
    assert (exported(root), root.get("migrations").json) == (before, revisions)


def test_definition_import_with_unique_conflict_is_409(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for _ in range(2):
        make_record(alice, title="a")
    answer = send(root, item("more"), item("posts", TITLE | {"unique": True}), strategy="update")
    assert (answer.status_code, answer.json["details"][0]["count"]) == (409, 1)
    assert root.get("collections/names").json["names"] == ["posts"]


def test_definition_export_of_chosen_collections(root: Caller) -> None:
    made = {name: make_collection(root, name) for name in ("alpha", "Beta", "gamma")}
    assert [one["name"] for one in exported(root)] == ["alpha", "Beta", "gamma"]
    chosen = exported(root, f"?collection_ids={made['gamma']['id']},beta")
    assert [one["name"] for one in chosen] == ["Beta", "gamma"]
    unknown = root.get("collections/export?collection_ids=beta,delta")
    assert [one["code"] for one in unknown.json["details"]] == ["invalid_reference"]
    whole = root.get("collections/export").json
    assert (whole["version"], whole["exported_by"]) == ("1.0", root.email)


def test_definition_import_body_with_wrong_shape_is_422(root: Caller) -> None:
    for body in [
        {},
        {"data": None},
        {"data": {}},
        {"data": {"collections": {}}},
        {"data": {"collections": [{"name": "posts"}]}},
        {"data": {"collections": [item("posts") | {"more": 1}]}},
        {"data": {"collections": []}, "strategy": "merge"},
        {"data": {"collections": []}, "strategy": None},
    ]:
        assert root.post("collections/import", body).status_code == 422, body
    assert send(root).json["imported_count"] == 0


def test_export_has_the_fragments_that_its_rules_use(root: Caller) -> None:
    texts = {"mine": "@owns_record()", "unused": "true"}
    assert root.put("rules/fragments", texts).status_code == 200
    made = make_collection(root, list_rule="@rule(mine)", view_rule="title = 'a' || @rule(mine)")
    make_collection(root, "others")
    data = root.get("collections/export").json
    assert data["fragments"] == {"mine": "@owns_record()"}
    assert root.get("collections/export?collection_ids=others").json["fragments"] == {}
    assert root.delete(f"collections/{made['id']}").status_code == 200
    for present, strategy, status, code in (
        ({"mine": "true"}, "update", 409, "in_use"),
        ({}, "skip", 200, None),
        ({"mine": "@owns_record()", "more": "true"}, "update", 200, None),
    ):
        assert root.put("rules/fragments", present).status_code == 200
        answer = root.post("collections/import", {"data": data, "strategy": strategy})
        assert answer.status_code == status, answer.json
        if code:
            found = [(one["field"], one["code"]) for one in answer.json["details"]]
            assert found == [("fragments.mine", code)]
            assert "mine" in answer.json["message"]
        else:
            assert root.get("rules/fragments").json == data["fragments"] | present
    invalid = {**data, "fragments": {"mine": "@owns_record()", "x": "@rule(mine)"}}
    answer = root.post("collections/import", {"data": invalid, "strategy": "update"})
    found = [(one["field"], one["code"]) for one in answer.json["details"]]
    assert (answer.status_code, found) == (400, [("fragments.x", "rule_invalid")])
