"""Lists of free texts, found by an index of their entries."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock
from app.collections import definitions
from app.collections.models import RecordLink
from app.db import db
from app.ids import new_id
from tests.builders import Caller, make_collection, make_record

MANY = 100_000
TITLE = {"name": "title", "type": "text"}
TAGS = {"name": "tags", "type": "text_list", "options": {"max_items": 3, "max_length": 10}}


def problems(answer: Any) -> list[tuple[str | None, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def entries(app: Flask) -> set[tuple[str, str]]:
    """The entries of all lists as the index has them, by the title of their record."""
    with app.app_context():
        rows = db.session.execute(sa.select(RecordLink.record_id, RecordLink.target_id))
        return {tuple(row) for row in rows}


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_collection(root, schema=[TITLE, TAGS])


def titles(caller: Caller, filter_: str, collection: str = "posts") -> str:
    answer = caller.get(
        f"records/{collection}", query_string={"filter": filter_, "sort": "created_at"}
    )
    assert answer.status_code == 200, answer.json
    return " ".join(one["title"] for one in answer.json["items"])


def test_text_list_keeps_order_and_its_entries(app: Flask, posts: Any, alice: Caller) -> None:
    made = make_record(alice, tags=["b", "e\u0301", " a "])
    assert made["tags"] == ["b", "\u00e9", " a "]
    id = made["id"]
    assert entries(app) == {(id, "b"), (id, "\u00e9"), (id, " a ")}
    changed = alice.patch(f"records/posts/{id}", {"tags": ["B"]}).json
    assert (changed["tags"], entries(app)) == (["B"], {(id, "B")})
    assert alice.patch(f"records/posts/{id}", {"tags": None}).json["tags"] is None
    assert entries(app) == set()
    batch = {"records": [{"tags": ["x"]}, {"tags": []}, {}]}
    made = alice.post("records/posts/batch", batch).json["created"]
    assert [one["tags"] for one in made] == [["x"], [], None]
    assert entries(app) == {(made[0]["id"], "x")}
    assert alice.delete(f"records/posts/{made[0]['id']}").status_code == 204
    assert entries(app) == set()


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("a", "invalid_type"),
        ({"a": 1}, "invalid_type"),
        ([1], "invalid_type"),
        ([None], "invalid_type"),
        ([["a"]], "invalid_type"),
        (["a", "a"], "duplicate_item"),
        (["\u00e9", "e\u0301"], "duplicate_item"),
        (["a", "b", "c", "d"], "too_many_items"),
        (["a" * 11], "too_long"),
        (["a", ""], "too_short"),
        (["a", " \t"], "too_short"),
    ],
)
def test_text_list_problems(posts: Any, alice: Caller, value: Any, code: str) -> None:
    assert problems(alice.post("records/posts", {"tags": value})) == [("tags", code)]


@pytest.mark.parametrize(
    "more",
    [
        {"options": {"max_items": 0}},
        {"options": {"max_items": 1001}},
        {"options": {"max_length": 0}},
        {"options": {"max_length": 501}},
        {"options": {"max_length": True}},
        {"options": {"index": True}},
        {"options": {"choices": ["a"]}},
        {"unique": True},
        {"default": ["a"]},
        {"multiple": True},
    ],
)
def test_text_list_definition_problems(root: Caller, more: dict[str, Any]) -> None:
    answer = root.post("collections", {"name": "posts", "schema": [{**TAGS, **more}]})
    assert problems(answer) == [("tags", "invalid_option")]


def test_text_list_required_needs_an_entry(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{**TAGS, "required": True}])
    for body, code in (({"tags": []}, "required_missing"), ({"tags": None}, "required_null")):
        assert problems(alice.post("records/posts", body)) == [("tags", code)]


FOUND = [
    ("@contains(tags, 'Red')", "both"),
    ("tags = 'Red'", "both"),
    ("@contains(tags, 'red')", "red"),
    ("!@contains(tags, 'blue')", "red none null"),
    ("tags ~ 'r%'", "both red"),
    ("tags IN ['blue', 'red']", "both red"),
    ("tags = null", "null"),
    ("tags != null && !(tags = 'Red')", "red none"),
    ("@contains(tags, title)", "red"),
    ("@contains(tags, @request.auth.email)", ""),
    ("@contains(tags, concat('bl', 'ue'))", "both"),
]


@pytest.mark.parametrize(("condition", "expected"), FOUND)
def test_text_list_conditions_are_alike_in_filters_and_rules(
    root: Caller, alice: Caller, bob: Caller, condition: str, expected: str
) -> None:
    make_collection(root, schema=[TITLE, TAGS])
    ids = {}
    for title, tags in (("both", ["Red", "blue"]), ("red", ["red"]), ("none", []), ("null", None)):
        ids[title] = make_record(alice, title=title, tags=tags)["id"]
    assert titles(bob, condition) == expected
    root.put("collections/posts/rules", {"list_rule": condition, "update_rule": condition})
    assert titles(bob, "") == expected
    written = [
        title
        for title, id in ids.items()
        if bob.patch(f"records/posts/{id}", {"title": title}).status_code == 200
    ]
    assert " ".join(written) == expected


def test_text_list_rules_judge_what_is_sent_and_old(root: Caller, alice: Caller) -> None:
    rules = {
        "create_rule": "@contains(tags, 'ok') && @contains(@request.data.tags, 'ok')",
        "update_rule": "!@contains(@old.tags, 'final')",
    }
    make_collection(root, schema=[TITLE, TAGS], **rules)
    assert alice.post("records/posts", {"tags": ["no"]}).status_code == 403
    made = make_record(alice, tags=["ok"])
    path = f"records/posts/{made['id']}"
    assert alice.patch(path, {"tags": ["final"]}).status_code == 200
    assert alice.patch(path, {"tags": []}).status_code == 403


def test_text_list_is_found_through_references_and_other_collections(
    posts: Any, root: Caller, alice: Caller
) -> None:
    post = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(root, "notes", [TITLE, post])
    made = make_record(alice, title="p", tags=["hot"])
    make_record(alice, "notes", title="n", post=made["id"])
    make_record(alice, "notes", title="m")
    assert titles(alice, "@contains(post.tags, 'hot')", "notes") == "n"
    assert titles(alice, "post.tags = 'cold'", "notes") == ""
    looked = "@any(posts, id = @record.post && @contains(tags, 'hot'))"
    assert titles(alice, looked, "notes") == "n"


def test_text_list_entries_follow_renames_removals_and_accounts(
    app: Flask, posts: dict[str, Any], root: Caller, alice: Caller, charlie: Caller
) -> None:
    mine, theirs = make_record(alice, tags=["a"]), make_record(charlie, tags=["a"])
    path = f"collections/{posts['id']}"
    renamed = {"schema": [{"name": "labels", "rename_from": "tags"}], "name": "texts"}
    assert root.patch(path, renamed).status_code == 200
    found = alice.get("records/texts", query_string={"filter": "@contains(labels, 'a')"}).json
    assert [one["id"] for one in found["items"]] == [mine["id"]]
    assert entries(app) == {(mine["id"], "a"), (theirs["id"], "a")}
    plan = root.post(f"{path}/plan", {"remove_fields": ["labels"]}).json
    root.patch(path, {"remove_fields": ["labels"], "plan_hash": plan["plan_hash"]})
    assert entries(app) == set()


def test_text_list_survives_files(app: Flask, posts: Any, alice: Caller) -> None:
    make_record(alice, title="a", tags=["=1", 'x,"y'])
    make_record(alice, title="b", tags=[])
    make_record(alice, title="c")
    before = [one["tags"] for one in alice.get("records/posts?sort=title").json["items"]]
    for format_, kind in (("csv", "text/csv"), ("json", "application/json")):
        raw = alice.get(f"records/posts/export?format={format_}&fields=title,tags").data
        for one in alice.get("records/posts").json["items"]:
            alice.delete(f"records/posts/{one['id']}")
        if format_ == "json":
            raw = raw.replace(b'"id":', b'"account":') if b'"account":' in raw else raw
        answer = alice.post("records/posts/import", data=raw, content_type=kind)
        assert answer.json.get("imported") == 3, answer.json
        after = [one["tags"] for one in alice.get("records/posts?sort=title").json["items"]]
        assert after == before
        assert {text for _, text in entries(app)} == {"=1", 'x,"y'}


@pytest.mark.both_databases
@pytest.mark.long
def test_text_list_filter_uses_an_index_over_many_records(
    app: Flask, posts: dict[str, Any], alice: Caller
) -> None:
    make_record(alice, title="needle", tags=["needle"])
    with app.app_context():
        is_sqlite = db.session.connection().dialect.name == "sqlite"
        ids = [new_id() for _ in range(MANY)]
        shared = {"account_id": alice.account_id, "created_at": clock.now()}
        records = [
            {**shared, "updated_at": clock.now(), "id": id, "title": "t", "tags": ["common"]}
            for id in ids
        ]
        of_field = {"account_id": alice.account_id, "collection_id": posts["id"], "field": "tags"}
        links = [
            {**of_field, "id": id, "record_id": id, "target_id": "common" if n % 2 else f"rare{n}"}
            for n, id in enumerate(ids)
        ]
        for table, rows in (
            (definitions.get("posts").table, records),
            (RecordLink.__table__, links),
        ):
            for start in range(0, MANY, 5000):
                db.session.execute(sa.insert(table), rows[start : start + 5000])
        db.session.commit()
        if not is_sqlite:
            db.session.execute(sa.text("ANALYZE"))
            db.session.commit()
    sent: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if "col_posts" in statement and "SELECT" in statement:
            sent.append((statement, parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        assert titles(alice, "@contains(tags, 'needle')") == "needle"
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    statement, parameters = next(one for one in sent if "record_links" in one[0])
    with app.app_context():
        prefix = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
        raw = db.session.connection().connection.cursor()
        raw.execute(prefix + statement, parameters)
        plan = " ".join(str(row) for row in raw.fetchall())
    assert "ix_record_links_target" in plan, plan
    assert "Seq Scan on col_posts" not in plan, plan
    assert "SCAN col_posts" not in plan, plan
