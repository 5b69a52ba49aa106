"""Changes of all kinds: each does what its plan says, and its reverse brings the records back."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.builders import Caller, Cast, make_collection, make_record
from tests.collections.test_removal import plan
from tests.collections.test_updates import assert_agreement, field, revisions

BASE = {
    "title": field("title", required=True, default="none"),
    "code": field("code", unique=True),
    "views": field("views", "number", options={"min": 0}),
    "state": field("state", "select", options={"choices": ["open", "done"]}),
    "tags": field("tags", "multi_select", options={"choices": ["a", "b"]}),
    "post": field("post", "reference", collection="posts", on_delete="restrict"),
    "loud": field("loud", "computed", expression="upper(title)", return_type="text"),
}
INDEXES = [{"fields": ["state", "-views"], "unique": False}]
RECORDS = [
    {"title": "x", "code": "1", "views": 1, "state": "open", "tags": ["b", "a"]},
    {"title": "x", "code": "2", "views": 2, "state": "done", "tags": ["b"]},
    {"title": "y"},
]


def renamed(**names: str) -> dict[str, Any]:
    """The whole schema with new names."""
    fields = {
        old: {**one, "name": names[old], "rename_from": old} if old in names else dict(one)
        for old, one in BASE.items()
    }
    fields["loud"]["expression"] = f"upper({names.get('title', 'title')})"
    return {"schema": list(fields.values())}


def changed(name: str, **properties: Any) -> dict[str, Any]:
    """The whole schema with other properties of a field."""
    return {"schema": list({**BASE, name: {**BASE[name], **properties}}.values())}


def added(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"schema": [*BASE.values(), *fields]}


def without(*names: str) -> dict[str, Any]:
    kept = [one for name, one in BASE.items() if name not in names]
    return {"schema": kept, "remove_fields": list(names)}


# Each: the change, what its operations are, and the problems of records.
CHANGES: list[tuple[dict[str, Any], set[str], list[tuple[str, str, int]]]] = [
    (added(field("more")), {"add_field"}, []),
    (added(field("more", required=True, default="d"), field("n", "number")), {"add_field"}, []),
    (added(field("more", required=True)), {"add_field"}, [("more", "required", 3)]),
    (added(field("up", "reference", collection="posts")), {"add_field"}, []),
    (changed("title", required=False), {"change_field"}, []),
    (changed("views", required=True), {"change_field"}, [("views", "required", 1)]),
    (changed("title", unique=True), {"change_field"}, [("title", "not_unique", 1)]),
    (changed("code", unique=False, options={"index": True}), {"change_field"}, []),
    (changed("views", options={"min": 2, "max": 3}), {"change_field"}, []),
    (changed("state", options={"choices": ["open"]}), {"change_field"}, [("state", "in_use", 1)]),
    (changed("tags", options={"choices": ["c", "b", "a"]}), {"change_field"}, []),
    (changed("loud", expression="lower(title)"), {"change_field"}, []),
    (changed("post", on_delete="cascade"), {"change_field"}, []),
    ({"indexes": []}, {"remove_index"}, []),
    (
        {"indexes": [*INDEXES, {"fields": ["title"], "unique": True}]},
        {"add_index"},
        [("title", "not_unique", 1)],
    ),
    (renamed(code="Code", post="parent"), {"rename_field"}, []),
    (
        renamed(title="headline", state="phase", loud="shout"),
        {"rename_field", "change_rule"},
        [],
    ),
    ({"name": "articles"}, {"rename_collection", "change_reference"}, []),
    (
        {**renamed(title="headline"), "name": "articles"},
        {"rename_collection", "change_reference", "rename_field", "change_rule"},
        [],
    ),
    (without("loud"), {"remove_field"}, []),
    (without("code", "tags"), {"remove_field"}, []),
    (
        {
            "schema": [
                *(
                    one
                    for one in renamed(views="count", tags="Tags")["schema"]
                    if one["name"] != "post"
                ),
                field("z"),
            ],
            "remove_fields": ["post"],
        },
        {"rename_field", "remove_field", "add_field"},
        [],
    ),
]


def records(caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.get("records/posts?sort=created_at").json["items"]
    return found


@pytest.mark.long
def test_schema_changes_of_all_kinds_follow_planned_sql_and_reverse(app: Flask, cast: Cast) -> None:
    root = cast.root
    made = make_collection(root, schema=list(BASE.values()), indexes=INDEXES)
    rules = {"list_rule": "title != '' || @request.data.title = 'a'", "view_rule": "true"}
    assert root.put("collections/posts/rules", rules).status_code == 200
    for record in RECORDS:
        make_record(cast.alice, **record)
    url, before = f"collections/{made['id']}", records(cast.alice)
    stored = root.get("collections/posts").json
    assert len(CHANGES) >= 20
    for body, operations, problems in CHANGES:
        stale = plan(root, made, **body)["plan_hash"]
        assert root.put("collections/posts/rules", {"view_rule": "true"}).status_code == 200
        body = {"schema": stored["schema"], **body}
        refused = root.put(url, {**body, "plan_hash": stale})
        assert (refused.status_code, refused.json["error"]) == (409, "plan_stale"), body
        planned = plan(root, made, **body)
        assert {one["operation"] for one in planned["operations"]} == operations, body
        assert _listed(planned["problems"]) == problems, body
        answer = root.put(url, {**body, "plan_hash": planned["plan_hash"]})
        if problems:
            assert answer.status_code in (400, 409), body
            assert _listed(answer.json["details"]) == problems
            assert root.get("collections/posts").json["schema"] == stored["schema"]
            continue
        assert answer.status_code == 200, (body, answer.json)
        assert revisions(app)[-1] == planned["sql"] or not planned["sql"]
        assert_agreement(app)
        back = planned["reverse"]
        undo = plan(root, made, **back)
        assert root.put(url, {**back, "plan_hash": undo["plan_hash"]}).status_code == 200, body
        lost = {one["field"] for one in planned["data_lost"]}
        now = root.get("collections/posts").json
        assert _by_name(now["schema"]) == _by_name(stored["schema"]), body
        assert now["indexes"] == stored["indexes"]
        assert root.get("collections/posts/rules").json["list_rule"] == rules["list_rule"]
        assert_agreement(app)
        assert _kept(records(cast.alice), lost) == _kept(before, lost), body
        for record, row in zip(before, RECORDS, strict=True):
            values = {name: row[name] for name in lost & row.keys()}
            if values:
                changed_ = cast.alice.patch(f"records/posts/{record['id']}", values)
                assert changed_.status_code == 200
        before, stored = records(cast.alice), now


def _listed(problems: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(one["field"], one["code"], one["count"]) for one in problems]


def _by_name(schema: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"]: one for one in schema}


def _kept(found: list[dict[str, Any]], lost: set[str]) -> list[dict[str, Any]]:
    return [{name: one[name] for name in one if name not in lost} for one in found]
