"""Fields renamed: no value moves, and whatever names the field follows or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.collections.test_removal import plan
from tests.collections.test_updates import assert_agreement, field, revisions
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import MANUAL, make_workflow

SCHEMA = [
    field("title", required=True, unique=True),
    field("views", "number", default=1, options={"index": True}),
    field("tags", "multi_select", options={"choices": ["a", "b"]}),
    field("author", "reference", collection="people"),
    field("next", "reference", collection="posts", on_delete="set_null"),
    field("loud", "computed", expression="concat(upper(title), views)", return_type="text"),
]
NEW_NAMES = {"title": "headline", "views": "Views", "tags": "labels", "author": "writer"}
NEW_NAMES |= {"next": "successor", "loud": "shout"}
RENAMING = [{"name": new, "rename_from": old} for old, new in NEW_NAMES.items()]
INDEXES = [{"fields": ["views", "-title"]}, {"fields": ["author", "created_at"], "unique": True}]
RULES = {
    "list_rule": "@contains(tags, 'a') || ((title)) != 'title' && @has_any_role(title, views)",
    "view_rule": "next . next.author.name = 'views' || author.post.title = author.name",
    "create_rule": "length(@request.data.title) != @request.data . views || title = 'it\\'s title'",
    "update_rule": "true",
    "delete_rule": "",
    "list_fields": ["title", "loud", "views"],
}
FOLLOWED = {
    "list_rule": "@contains(labels, 'a') || ((headline)) != 'title' && @has_any_role(title, views)",
    "view_rule": "successor.successor.writer.name = 'views' || writer.post.headline = writer.name",
    "list_fields": ["headline", "shout", "Views"],
}
ELSEWHERE = "post.author.post.title = title && post.loud ~ 'title%'"
ELSEWHERE_AFTER = "post.writer.post.headline = title && post.shout ~ 'title%'"


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    for name in ("title", "views"):  # as fields are called
        assert root.post("roles", {"name": name}).status_code == 201
    people = make_collection(root, "people", [field("name")])
    made = make_collection(root, schema=SCHEMA, indexes=INDEXES)
    more = [field("post", "reference", collection="posts"), field("title")]
    added = root.patch(f"collections/{people['id']}", {"schema": more})
    assert added.status_code == 200
    assert root.put("collections/people/rules", {"list_rule": ELSEWHERE}).status_code == 200
    assert root.put("collections/posts/rules", RULES).status_code == 200
    return made


def moved(record: dict[str, Any]) -> dict[str, Any]:
    return {NEW_NAMES.get(name, name): value for name, value in record.items()}


def test_field_rename_moves_no_values_and_can_be_reversed(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    root = cast.root.acting_in("acme")
    record = make_record(root, title="a", views=5, tags=["b", "a"])
    record = root.patch(f"records/posts/{record['id']}", {"next": record["id"]}).json
    before = root.get("collections/posts").json, root.get("collections/posts/rules").json
    url = f"collections/{posts['id']}"
    planned = plan(root, posts, schema=[*_whole(posts)])
    answer = root.patch(url, {"schema": RENAMING, "plan_hash": planned["plan_hash"]})
    assert answer.status_code == 200, answer.json
    assert not [one for one in planned["sql"] if "INSERT" in one or "UPDATE" in one]
    assert revisions(app)[-1] == planned["sql"]
    assert_agreement(app)
    assert root.get(f"records/posts/{record['id']}").json == moved(record)
    rules = root.get("collections/posts/rules").json
    assert {key: rules[key] for key in FOLLOWED} == FOLLOWED
    assert rules["create_rule"] == (
        "length(@request.data.headline) != @request.data . Views || headline = 'it\\'s title'"
    )
    assert root.get("collections/people/rules").json["list_rule"] == ELSEWHERE_AFTER
    assert [one["fields"] for one in answer.json["indexes"]] == [
        ["Views", "-headline"],
        ["writer", "created_at"],
    ]
    assert answer.json["schema"][-1]["expression"] == "concat(upper(headline), Views)"
    assert root.get("records/posts?sort=-Views&headline=a&fields=shout").json["total"] == 1
    # Sent again, it renames nothing.
    assert root.patch(url, {"schema": RENAMING}).json == answer.json
    back = planned["reverse"]
    undone = plan(root, posts, **back)
    assert {one["operation"] for one in undone["operations"]} == {"rename_field", "change_rule"}
    assert root.put(url, back).status_code == 200
    assert root.get(f"records/posts/{record['id']}").json == record
    after = root.get("collections/posts").json, root.get("collections/posts/rules").json
    assert after[0] == {**before[0], "updated_at": after[0]["updated_at"]}
    assert after[1] == {**before[1], "view_rule": RULES["view_rule"].replace(" . ", ".")} | {
        "read": after[1]["read"]
    }
    assert root.get("collections/people/rules").json["list_rule"] == ELSEWHERE
    assert_agreement(app)


def _whole(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The whole schema with the new names, whose expression has them already."""
    fields = [
        {**one, "name": NEW_NAMES[one["name"]], "rename_from": one["name"]}
        for one in made["schema"]
    ]
    fields[-1]["expression"] = "concat(upper(headline), Views)"
    return fields


REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], list[tuple[str, str]]]] = [
    ([field("b", rename_from="nope")], {}, [("b", "unknown_field")]),
    ([field("views", rename_from="title")], {}, [("views", "name_duplicate")]),
    ([field("VIEWS", rename_from="title")], {}, [("VIEWS", "name_duplicate")]),
    ([field("id", rename_from="title")], {}, [("id", "name_reserved")]),
    ([field("b c", rename_from="title")], {}, [("b c", "name_invalid")]),
    (
        [field("b", rename_from="title"), field("c", rename_from="title")],
        {},
        [("c", "name_duplicate")],
    ),
    ([field("b", rename_from="title"), field("title")], {}, [("b", "name_duplicate")]),
    (
        [field("title", rename_from="views"), field("views", rename_from="title")],
        {},
        [("title", "name_duplicate"), ("views", "name_duplicate")],
    ),
    (
        [field("b", rename_from="title")],
        {"remove_fields": ["title"], "plan_hash": "2-0"},
        [("b", "name_duplicate")],
    ),
    (
        [field("b", "number", rename_from="title")],
        {},
        [("loud", "expression_invalid"), ("b", "type_change_not_allowed")],
    ),
    (
        [{"name": "b", "rename_from": "title"}, {"name": "loud", "expression": "upper(title)"}],
        {},
        [("loud", "expression_invalid")],
    ),
    ([{"name": "b", "rename_from": "title"}], {"list_rule": "title = 'a'"}, []),
    ([{"name": "b", "rename_from": "title"}], {"indexes": [{"fields": ["title"]}]}, []),
]


def test_field_rename_that_is_invalid_is_400(root: Caller) -> None:
    schema = [field("title"), field("views", "number"), SCHEMA[-1]]
    made = make_collection(root, schema=schema)
    assert root.put("collections/posts/rules", {"view_rule": ""}).status_code == 200
    for specs, others, expected in REFUSED:
        answer = root.patch(f"collections/{made['id']}", {"schema": specs, **others})
        assert answer.status_code == 400, specs
        found = [(one["field"], one["code"]) for one in answer.json["details"]]
        assert found == expected or (not expected and len(found) == 1), specs
    assert root.get("collections/posts").json["schema"] == made["schema"]


def test_field_rename_that_texts_cannot_follow_is_400_per_place(
    cast: Cast, posts: dict[str, Any]
) -> None:
    hook = make_webhook(cast.charlie, "http://127.0.0.1:9/", filter="views > 2")
    data = {"collection": "posts", "data": {"title": "{{ trigger.body.title }}"}}
    step = {"name": "s", "type": "action", "action_type": "create_record", "config": data}
    flow = make_workflow(cast.alice, [step], MANUAL)
    answer = cast.root.patch(f"collections/{posts['id']}", {"schema": RENAMING})
    assert answer.status_code == 400
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        (f"webhooks[{hook['id']}].filter", "field_in_use"),
        (f"workflows[{flow['id']}].steps.s", "field_in_use"),
    ]
    assert cast.root.get("collections/posts").json["schema"] == posts["schema"]


def test_field_rename_keeps_record_history_and_feed(cast: Cast) -> None:
    root = cast.root.acting_in("acme")
    posts = make_collection(root, schema=[field("title"), field("views", "number"), SCHEMA[2]])
    long = "x" * 9000  # which the feed takes from later changes
    first = make_record(root, title=long, views=1, tags=["a"])
    url = f"records/posts/{first['id']}"
    second = root.patch(url, {"views": 2}).json
    rename = {"schema": [{"name": "headline", "rename_from": "title"}]}
    rename["schema"] += [{"name": "count", "rename_from": "views"}]
    assert root.patch(f"collections/{posts['id']}", rename).status_code == 200
    # Their former names are taken by others.
    added = {"schema": [field("title", "number"), field("views")]}
    assert root.patch(f"collections/{posts['id']}", added).status_code == 200
    third = root.patch(url, {"headline": "b", "count": 3, "title": 7, "views": "many"}).json
    others = {"title": None, "views": None}

    def then(record: dict[str, Any]) -> dict[str, Any]:
        named = {**record, "headline": record["title"], "count": record["views"]}
        return {**named, **others}

    for moment, record in ((first["updated_at"], first), (second["updated_at"], second)):
        assert root.get(url, query_string={"as_of": moment}).json == then(record)
    items = changes_of_records(root)
    assert [one["record"] for one in items] == [then(first), then(second), third]
    assert [one.get("previous") for one in items] == [None, then(first), then(second)]
    items = root.get(f"{url}/history").json["items"]
    names = [{one["field"] for one in item["changes"]} for item in items]
    assert names == [
        {"headline", "count", "title", "views"},
        {"count"},
        {"headline", "count", "tags"},
    ]
    restored = root.post(f"{url}/restore", {"audit_id": items[1]["audit_id"]}).json
    assert {name: restored[name] for name in ("headline", "count", "title", "views")} == {
        "headline": long,
        "count": 2,
        **others,
    }
    assert root.delete(url).status_code == 204
    assert changes_of_records(root)[-1]["previous"] == restored


def test_definition_import_with_rename_from_renames_field(cast: Cast) -> None:
    root = cast.root.acting_in("acme")
    make_collection(root, schema=[field("title")], list_rule="title != 'a'")
    record = make_record(root, title="x")
    item: dict[str, Any] = {"name": "posts", "schema": [field("headline", rename_from="title")]}
    other = {"name": "others", "schema": [field("new", rename_from="never")]}
    body = {"data": {"collections": [item, other]}, "strategy": "update"}
    for expected in ("imported", "updated"):  # again, nothing is left to rename
        report = root.post("collections/import", body)
        assert report.status_code == 200, report.json
        assert [one["status"] for one in report.json["collections"]] == ["updated", expected]
    assert root.get(f"records/posts/{record['id']}").json["headline"] == "x"
    assert root.get("collections/posts/rules").json["list_rule"] == "headline != 'a'"
    exported = root.get("collections/export?collection_ids=posts").json["collections"]
    assert "rename_from" not in exported[0]["schema"][0]
    hook = make_webhook(cast.alice, "http://127.0.0.1:9/", filter="headline = 'a'")
    item["schema"] = [field("title", rename_from="headline")]
    refused = root.post("collections/import", body)
    assert refused.status_code == 400
    assert [one["field"] for one in refused.json["details"]] == [f"webhooks[{hook['id']}].filter"]
