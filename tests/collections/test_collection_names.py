"""Collections renamed: no value moves, and whatever names the collection follows or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.collections.test_removal import plan
from tests.collections.test_updates import assert_agreement, field, revisions
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import MANUAL, make_workflow

SCHEMA = [
    field("title", unique=True),
    field("views", "number", options={"index": True}),
    field("next", "reference", collection="posts", on_delete="set_null"),
    field("author", "reference", collection="people"),
    field("text"),
    field("loud", "computed", expression="upper(title)", return_type="text"),
]
INDEXES = [{"fields": ["views", "-title"]}]
RULES = {"view_rule": "next.author.name = 'x' || true", "list_rule": "", "create_rule": ""}


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    make_collection(root, "people", [field("name")])
    made = make_collection(root, schema=SCHEMA, indexes=INDEXES)
    comments = [field("post", "reference", collection="posts"), field("text")]
    make_collection(root, "comments", comments)
    assert root.put("collections/posts/rules", RULES).status_code == 200
    rule = {"view_rule": "post.title = 'a'"}
    assert root.put("collections/comments/rules", rule).status_code == 200
    return made


def test_collection_rename_moves_table_without_copying(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    root, url = cast.root.acting_in("acme"), f"collections/{posts['id']}"
    record = make_record(root, title="a")
    second = make_record(root, title="b", next=record["id"])
    comment = make_record(root, "comments", post=second["id"])
    before = root.get("collections/comments").json, root.get("collections/posts").json
    planned = plan(root, posts, name="Articles")
    assert [(one["operation"], one["field"]) for one in planned["operations"]] == [
        ("rename_collection", None),
        ("change_reference", "Articles.next"),
        ("change_reference", "comments.post"),
    ]
    assert planned["problems"] == planned["data_lost"] == []
    assert not [one for one in planned["sql"] if "INSERT" in one or "UPDATE" in one]
    answer = root.patch(url, {"name": "Articles", "plan_hash": planned["plan_hash"]})
    assert answer.status_code == 200, answer.json
    assert (answer.json["name"], answer.json["table_name"]) == ("Articles", "col_articles")
    assert revisions(app)[-1] == planned["sql"]
    assert_agreement(app)
    assert root.get("records/posts").status_code == 404
    found = root.get(f"records/articles/{second['id']}?expand=next").json
    assert found["expand"]["next"]["title"] == "a"
    path = f"records/comments/{comment['id']}?expand=post"
    assert root.get(path).json["expand"]["post"]["title"] == "b"
    assert root.get("records/articles?sort=-views").json["total"] == 2
    refused = root.post("records/articles", {"title": "a"})
    assert (refused.status_code, refused.json["field"]) == (409, "title")
    assert root.delete(f"records/articles/{second['id']}").status_code == 409  # a comment refers
    # Its former name is free, also for its indexes and references.
    make_collection(root, schema=SCHEMA, indexes=INDEXES)
    assert root.get("records/posts").json["total"] == 0
    assert_agreement(app)
    taken = root.patch(url, {"name": "POSTS"})
    assert (taken.status_code, taken.json["field"]) == (409, "name")
    assert root.delete(f"collections/{root.get('collections/posts').json['id']}").status_code == 200
    assert root.put(url, planned["reverse"]).status_code == 200
    assert root.get("collections/comments").json["schema"] == before[0]["schema"]
    assert root.get(f"records/posts/{record['id']}").json == record
    restored = root.get(url).json
    counts = {"record_count": 2, "records_count": 2}
    assert restored == {**before[1], **counts, "updated_at": restored["updated_at"]}
    assert_agreement(app)


@pytest.mark.parametrize(
    ("name", "code"),
    [("ab", "name_invalid"), ("a b c", "name_invalid"), ("batch", "name_reserved")],
)
def test_collection_rename_to_invalid_name_is_400(root: Caller, name: str, code: str) -> None:
    made = make_collection(root)
    for answer in (
        root.patch(f"collections/{made['id']}", {"name": name}),
        root.post(f"collections/{made['id']}/plan", {"name": name}),
    ):
        assert answer.status_code == 400
        assert [(one["field"], one["code"]) for one in answer.json["details"]] == [("name", code)]


def test_collection_rename_with_schema_change_is_all_or_nothing(
    root: Caller, posts: dict[str, Any]
) -> None:
    url = f"collections/{posts['id']}"
    body = {
        "name": "articles",
        "schema": [{"name": "headline", "rename_from": "title"}, field("more", default="x")],
        "indexes": [{"fields": ["headline", "more"]}],
    }
    before = root.get("collections/posts").json
    answer = root.patch(url, {**body, "list_rule": "nothing = 1"})
    assert answer.status_code == 400
    assert root.get("collections/posts").json == before
    answer = root.patch(url, {**body, "list_rule": "next.headline = 'a'"})
    assert answer.status_code == 200, answer.json
    assert answer.json["schema"][5]["expression"] == "upper(headline)"
    assert root.get("collections/comments/rules").json["view_rule"] == "post.headline = 'a'"


def test_collection_change_with_stale_plan_is_409(root: Caller, posts: dict[str, Any]) -> None:
    planned = plan(root, posts, name="articles")
    url = f"collections/{posts['id']}"
    for body in ({"name": "essays"}, {"name": "articles", "list_rule": "true"}):
        answer = root.patch(url, {**body, "plan_hash": planned["plan_hash"]})
        if "list_rule" in body:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json["error"]) == (409, "plan_stale")
    answer = root.patch(url, {"name": "articles", "plan_hash": planned["plan_hash"]})
    assert (answer.status_code, answer.json["error"]) == (409, "plan_stale")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_collection_rename_to_same_name_takes_no_table_lock(
    root: Caller, posts: dict[str, Any]
) -> None:
    locked = []

    def note(*arguments: Any) -> None:
        texts = [text for text in arguments if isinstance(text, str) and "LOCK TABLE" in text]
        locked.extend(text for text in texts if "rights_changes" not in text)  # none of records

    with root.app.app_context():
        sa.event.listen(db.db.engine, "before_cursor_execute", note)
    for name, expected in (("Posts", False), ("articles", True)):
        body = {"name": name, "list_rule": "true"}
        assert root.patch(f"collections/{posts['id']}", body).status_code == 200
        assert bool(locked) == expected
    with root.app.app_context():
        sa.event.remove(db.db.engine, "before_cursor_execute", note)


def test_collection_rename_updates_webhooks_and_scopes_of_all_accounts(
    cast: Cast, posts: dict[str, Any]
) -> None:
    hooks = [
        make_webhook(one, "http://127.0.0.1:9/", collection="Posts")
        for one in (cast.alice, cast.charlie)
    ]
    scopes = {"collections": ["people", "POSTS"], "operations": ["create", "view"]}
    key = cast.alice.post("admin/api-keys", {"name": "k", "scopes": scopes}).json
    renamed = cast.root.patch(f"collections/{posts['id']}", {"name": "articles"})
    assert renamed.status_code == 200
    for one, hook in zip((cast.alice, cast.charlie), hooks, strict=True):
        assert one.get(f"webhooks/{hook['id']}").json["collection"] == "articles"
    by_key = Caller(cast.alice.app, **{"X-API-Key": key["key"]})
    made = make_record(by_key, "articles", title="a")
    sent = cast.alice.get(f"webhooks/{hooks[0]['id']}/deliveries").json["items"]
    assert [one["payload"]["record"]["id"] for one in sent] == [made["id"]]
    # Another collection of the former name is not theirs.
    make_collection(cast.root)
    assert by_key.post("records/posts", {"title": "a"}).status_code == 403
    audited = cast.root.get("audit-logs?table_name=webhooks").json["items"]
    changed = [one for one in audited if one["column_name"] == "collection" and one["old_value"]]
    assert [one["new_value"] for one in changed] == ["articles"] * 2


def test_collection_rename_while_named_in_workflows_is_400(
    cast: Cast, posts: dict[str, Any]
) -> None:
    data = {"title": "{{ trigger.body.title }}"}
    create = {"type": "action", "action_type": "create_record"}
    steps = [
        {**create, "name": "one", "config": {"collection": "Posts", "data": data}},
        {**create, "name": "two", "config": {"collection": "people", "data": data}},
        {
            "name": "three",
            "type": "condition",
            "expression": "trigger.body.kind = 'posts'",
            "on_true": "one",
            "on_false": "two",
        },
    ]
    trigger = {"type": "event", "event": "records.create", "collection": "posts"}
    flow = make_workflow(cast.alice, steps, MANUAL)
    hook = make_workflow(cast.charlie, steps[1:2], trigger)
    answer = cast.root.patch(f"collections/{posts['id']}", {"name": "articles"})
    assert answer.status_code == 400
    places = {(one["field"], one["code"]) for one in answer.json["details"]}
    assert places == {
        (f"workflows[{flow['id']}].steps.one", "collection_in_use"),
        (f"workflows[{flow['id']}].steps.three", "collection_in_use"),
        (f"workflows[{hook['id']}].trigger.collection", "collection_in_use"),
    }
    planned = cast.root.post(f"collections/{posts['id']}/plan", {"name": "articles"})
    assert planned.json["details"] == answer.json["details"]
    assert cast.root.get("collections/posts").json["name"] == "posts"


def test_collection_rename_keeps_history_feed_and_audit_log(
    cast: Cast, posts: dict[str, Any]
) -> None:
    root, url = cast.root.acting_in("acme"), f"collections/{posts['id']}"
    long = "x" * 9000  # which the feed takes from later changes
    first = make_record(root, text=long, views=1)
    second = root.patch(f"records/posts/{first['id']}", {"views": 2}).json
    names = {"name": "articles", "schema": [{"name": "count", "rename_from": "views"}]}
    assert root.patch(url, names).status_code == 200
    # Another collection takes the name.
    make_collection(root, schema=[field("title")])
    other = make_record(root, title="other")
    path = f"records/articles/{first['id']}"
    third = root.patch(path, {"text": "b", "count": 3}).json

    def then(record: dict[str, Any]) -> dict[str, Any]:
        count = record["views"]
        return {**{key: record[key] for key in record if key != "views"}, "count": count}

    for moment, record in ((first["updated_at"], first), (second["updated_at"], second)):
        assert root.get(path, query_string={"as_of": moment}).json == then(record)
    changes = root.get(f"{path}/history").json["items"]
    assert [sorted(c["field"] for c in one["changes"])[:2] for one in changes][1:] == [
        ["count"],
        ["count", "text"],
    ]
    assert root.get(f"records/posts/{first['id']}/history").status_code == 404
    feed = changes_of_records(root, collections="articles")
    assert [one["collection"] for one in feed] == ["articles"] * 3
    assert [one["record"] for one in feed] == [then(first), then(second), third]
    assert [one["record"] for one in changes_of_records(root, collections="posts")] == [other]
    assert len(changes_of_records(root)) == 4
    query = {"table_name": "col_articles", "record_id": first["id"]}
    audited = root.get("audit-logs", query_string=query | {"sort_order": "asc"}).json["items"]
    texts = [(o["table_name"], o["new_value"]) for o in audited if o["column_name"] == "text"]
    assert texts == [("col_posts", long), ("col_articles", "b")]
    restored = root.post(f"{path}/restore", {"audit_id": changes[1]["audit_id"]}).json
    assert (restored["text"], restored["count"]) == (long, 2)
    assert root.delete(path).status_code == 204
    erased = root.post(f"{path}/erase")
    assert erased.status_code == 200, erased.json
    left = root.get("audit-logs", query_string={"record_id": first["id"]}).json["items"]
    assert {one["new_value"] for one in left} == {None}
    kept = root.get("audit-logs", query_string={"record_id": other["id"]}).json["items"]
    assert {one["new_value"] for one in kept} == {other["id"], "other"}


def test_definition_import_with_rename_from_renames_collection(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    root = cast.root.acting_in("acme")
    record = make_record(root, title="a")
    comments = root.get("collections/export?collection_ids=comments").json["collections"][0]
    refers = field("article", "reference", collection="articles")
    items = [
        {"name": "reviews", "schema": [refers]},
        {**comments, "schema": [*comments["schema"], refers], "rules": {}},
        {"name": "articles", "rename_from": "Posts", "schema": posts["schema"]},
    ]
    for strategy, status in (("skip", 400), ("error", 409), ("update", 200), ("update", 200)):
        body = {"data": {"collections": items}, "strategy": strategy}
        answer = root.post("collections/import", body)
        assert answer.status_code == status, answer.json
    assert root.get(f"records/articles/{record['id']}").json["title"] == "a"
    for name, fields in (("reviews", ["article"]), ("comments", ["article", "post"])):
        schema = root.get(f"collections/{name}").json["schema"]
        targets = {one["name"]: one["collection"] for one in schema if one["collection"]}
        assert targets == dict.fromkeys(fields, "articles")
    assert "rename_from" not in root.get("collections/export").json["collections"][0]
    twice = [items[2] | {"name": "essays", "rename_from": "articles"}, items[2]]
    body = {"data": {"collections": twice}, "strategy": "update"}
    refused = root.post("collections/import", body)
    assert refused.json["details"][-1]["code"] == "name_duplicate"
    assert_agreement(app)


def test_collection_rename_keeps_personal_data_masked(cast: Cast) -> None:
    root = cast.root.acting_in("acme")
    schema = [field("mail", "email", pii=True, mask_type="full"), field("note")]
    made = make_collection(root, schema=schema)
    make_record(root, mail="a@b.example", note="public")
    assert root.patch(f"collections/{made['id']}", {"name": "letters"}).status_code == 200
    make_collection(root, schema=[field("mail"), field("note")])
    query = {"table_name": "col_posts"}
    entries = root.get("audit-logs", query_string=query).json["items"]
    values = {one["column_name"]: one["new_value"] for one in entries}
    assert values["note"] == "public"
    assert "a@b.example" not in values.values()
