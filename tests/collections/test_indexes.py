"""Indexes of collections: what they may be, what they refuse, and how they come and go."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions, indexes
from app.collections.models import Revision
from tests.builders import Caller, make_collection, make_record
from tests.collections.tables import agrees, inspected

SCHEMA = [
    {"name": "published", "type": "boolean"},
    {"name": "views", "type": "number"},
    {"name": "title", "type": "text"},
    {"name": "slug", "type": "text"},
    {"name": "meta", "type": "json"},
    {"name": "double", "type": "computed", "expression": "views * 2", "return_type": "number"},
    {"name": "code", "type": "text", "options": {"index": True}},
    {"name": "number", "type": "number", "unique": True},
]


def index(*fields: str, unique: bool = False) -> dict[str, Any]:
    return {"fields": list(fields), "unique": unique}


PUBLISHED, SLUG = index("published", "-views"), index("title", "slug", unique=True)


def columns(app: Flask, table: str = "col_posts") -> dict[str, tuple[str, ...]]:
    """The columns of each index of the database's table, but for those of properties."""
    with app.app_context():
        found = inspected(table).get_indexes(table)
        db.db.session.remove()
    return {one["name"]: tuple(filter(None, one["column_names"])) for one in found if one["name"]}


def assert_agreement(app: Flask) -> None:
    """Every table is what its definition says, and nothing is left over from building it."""
    with app.app_context():
        for one in definitions.get_all():
            assert agrees(one.table) == []
        db.db.session.remove()


def details(answer: TestResponse, status: int = 400) -> list[tuple[Any, ...]]:
    assert answer.status_code == status, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


# --- What an index may be -------------------------------------------------------------------------


@pytest.mark.one_database
def test_index_definition_problems_are_reported_at_once(root: Caller) -> None:
    sent = [
        index("nowhere", "-nothing"),
        index("meta", "double"),
        index("id", "account_id"),
        index("views", "-views"),
        PUBLISHED,
        PUBLISHED,
        index("code"),
        index("number", unique=True),
        index("-created_at"),
        index("--views"),
    ]
    expected = [
        ("indexes[0]", "unknown_field"),
        ("indexes[0]", "unknown_field"),
        ("indexes[1]", "invalid_option"),
        ("indexes[1]", "invalid_option"),
        ("indexes[2]", "invalid_option"),
        ("indexes[2]", "invalid_option"),
        ("indexes[3]", "invalid_option"),
        ("indexes[5]", "invalid_option"),
        ("indexes[6]", "invalid_option"),
        ("indexes[7]", "invalid_option"),
        ("indexes[8]", "invalid_option"),
        ("indexes[9]", "unknown_field"),
    ]
    wrong_name = {"name": "no", "schema": SCHEMA, "indexes": sent}
    assert details(root.post("collections", wrong_name)) == [("name", "name_invalid"), *expected]
    made = make_collection(root, schema=SCHEMA)
    for answer in (
        root.put(f"collections/{made['id']}", {"schema": SCHEMA, "indexes": sent}),
        root.patch(f"collections/{made['id']}", {"indexes": sent}),
        root.post(f"collections/{made['id']}/plan", {"indexes": sent}),
    ):
        assert details(answer) == expected
    items = [{"name": "posts", "schema": SCHEMA, "indexes": sent}]
    imported = {"data": {"collections": items}, "strategy": "update"}
    assert details(root.post("collections/import", imported)) == [
        (f"posts.{field}", code) for field, code in expected
    ]
    assert root.get("collections/posts").json == made


@pytest.mark.one_database
@pytest.mark.parametrize(
    "sent",
    [
        None,
        {},
        ["views"],
        [{}],
        [{"fields": []}],
        [{"fields": "views"}],
        [{"fields": [1]}],
        [{"fields": ["views"] * (indexes.MAX_FIELDS + 1)}],
        [{"fields": ["views"], "unique": "yes"}],
        [{"fields": ["views"], "name": "mine"}],
        [{"fields": ["views"]}] * (indexes.MAX_INDEXES + 1),
    ],
)
def test_index_definition_with_wrong_shape_is_422(root: Caller, sent: object) -> None:
    made = make_collection(root, schema=SCHEMA)
    for path, body in ((made["id"], {}), (f"{made['id']}/plan", {"schema": SCHEMA})):
        method = "POST" if path.endswith("plan") else "PATCH"
        answer = root(method, f"collections/{path}", {**body, "indexes": sent})
        assert answer.status_code == 422, answer.json
        assert {one["loc"][:2] == ["body", "indexes"] for one in answer.json["detail"]} == {True}


def test_index_count_up_to_maximum_is_accepted(app: Flask, root: Caller) -> None:
    names = [f"{'f' * 62}{letter}" for letter in "abcdefgh"]
    schema = [{"name": name, "type": "text"} for name in names]
    many = [index(*names[n:], *names[:n]) for n in range(8)]
    many += [index(*(f"-{name}" for name in one["fields"])) for one in many]
    many += [index(names[0], "updated_at"), index("created_by"), index("created_at", names[0])]
    many += [index(*names, unique=True)]
    assert len(many) == indexes.MAX_INDEXES
    made = make_collection(root, "c" * 56, schema, indexes=many)
    assert made["indexes"] == many
    assert_agreement(app)
    found = columns(app, made["table_name"])
    assert max(map(len, found)) <= 63
    assert len(found) == len(many) + 1


# --- How they come and go -------------------------------------------------------------------------


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ([], [PUBLISHED, SLUG], ["add_index", "add_index"]),
        ([PUBLISHED, SLUG], [], ["remove_index", "remove_index"]),
        ([PUBLISHED], [index("published", "views")], ["remove_index", "add_index"]),
        ([SLUG], [index("title", "slug")], ["remove_index", "add_index"]),
        ([PUBLISHED], [index("-created_by", "title"), PUBLISHED], ["add_index"]),
    ],
)
def test_indexes_change_as_planned(
    app: Flask,
    root: Caller,
    alice: Caller,
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    operations: list[str],
    filled: bool,
) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=before)
    assert (made["indexes"], root.get("collections/posts").json) == (before, made)
    if filled:
        make_record(alice, title="a", slug="b")
    url = f"collections/{made['id']}"
    planned = root.post(f"{url}/plan", {"indexes": after}).json
    assert [one["operation"] for one in planned["operations"]] == operations
    assert [one["index"] for one in planned["operations"]] == [
        *(one for one in before if one not in after),
        *(one for one in after if one not in before),
    ]
    assert len(planned["sql"]) == len(operations)
    changed = root.patch(url, {"indexes": after})
    assert (changed.status_code, changed.json["indexes"]) == (200, after)
    assert_agreement(app)
    with app.app_context():
        query = sa.select(Revision).order_by(Revision.number)
        latest = list(db.db.session.scalars(query))[-1]
        assert latest.statements == planned["sql"]
        assert latest.description == "change indexes of collection posts"
    again = root.post(f"{url}/plan", {"schema": SCHEMA, "indexes": after}).json
    assert [again[key] for key in ("operations", "sql", "problems")] == [[], [], []]


def test_collection_update_without_indexes_keeps_them(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[PUBLISHED, SLUG])
    make_record(alice, title="a")
    required = {"name": "views", "type": "number", "required": True, "default": 0}
    url, kept = f"collections/{made['id']}", columns(app)
    for answer in (
        root.put(url, {"schema": [required if one["name"] == "views" else one for one in SCHEMA]}),
        root.patch(url, {"schema": [{"name": "extra", "type": "text"}], "list_rule": None}),
        root.patch(url, {"schema": [{"name": "views", "required": False}]}),
    ):
        assert (answer.status_code, answer.json["indexes"]) == (200, [PUBLISHED, SLUG])
        assert_agreement(app)
        assert columns(app) == kept
    assert root.delete(url).status_code == 200
    assert make_collection(root, schema=SCHEMA)["indexes"] == []


def test_index_list_keeps_order_of_request(root: Caller) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[PUBLISHED, SLUG])
    answer = root.patch(f"collections/{made['id']}", {"indexes": [SLUG, PUBLISHED]})
    assert answer.json["indexes"] == [SLUG, PUBLISHED]
    assert root.get("collections/posts").json == answer.json


def test_index_of_field_added_in_same_update(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root)
    make_record(alice, title="a")
    added = {"name": "rank", "type": "number", "default": 1, "required": True}
    body = {"schema": [added], "indexes": [index("title", "-rank")]}
    assert root.patch(f"collections/{made['id']}", body).status_code == 200
    assert_agreement(app)
    assert columns(app)["ix_col_posts$title$-rank"] == ("account_id", "title", "rank", "id")


@pytest.mark.long
def test_definition_export_and_import_include_indexes(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[PUBLISHED, SLUG])
    make_record(alice, title="a", slug="b")
    data = root.get("collections/export").json
    assert data["collections"][0]["indexes"] == [PUBLISHED, SLUG]
    assert root.delete(f"collections/{made['id']}").status_code == 200
    assert root.post("collections/import", {"data": data}).status_code == 200
    make_record(alice, title="a", slug="b")
    assert root.get("collections/posts").json["indexes"] == [PUBLISHED, SLUG]
    (item,) = data["collections"]
    without = {key: value for key, value in item.items() if key != "indexes"}
    for sent, expected in (
        (without, [PUBLISHED, SLUG]),
        (item | {"indexes": [SLUG]}, [SLUG]),
        (item, [PUBLISHED, SLUG]),
        (item | {"indexes": []}, []),
    ):
        body = {"data": {"collections": [sent]}, "strategy": "update"}
        assert root.post("collections/import", body).status_code == 200
        assert root.get("collections/posts").json["indexes"] == expected
        assert_agreement(app)


@pytest.mark.one_database
def test_index_change_is_audited(root: Caller) -> None:
    made = make_collection(root, schema=SCHEMA)
    root.patch(f"collections/{made['id']}", {"indexes": [PUBLISHED]})
    query = {"record_id": made["id"], "operation": "UPDATE"}
    (entry,) = root.get("audit-logs", query_string=query).json["items"]
    assert entry["column_name"] == "indexes"
    assert "published" in entry["new_value"]


# --- What a unique index refuses ------------------------------------------------------------------


def test_unique_index_refuses_equal_values_within_account(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    make_collection(root, schema=SCHEMA, indexes=[SLUG, index("views", "published", unique=True)])
    same = {"title": "a", "slug": "b"}
    first = make_record(alice, **same, number=1)
    make_record(charlie, **same)
    other = make_record(alice, title="a", slug="c")
    refused = alice.post("records/posts", same)
    assert (refused.json["error"], refused.json["field"]) == ("conflict", "title")
    expected = [("title", "not_unique"), ("slug", "not_unique")]
    assert details(refused, 409) == expected
    message = "Another record has the same values of title, slug already."
    assert {one["message"] for one in refused.json["details"]} == {message}
    assert details(alice.patch(f"records/posts/{other['id']}", {"slug": "b"}), 409) == expected
    assert details(alice.put(f"records/posts/{other['id']}", same), 409) == expected
    assert alice.patch(f"records/posts/{first['id']}", {**same, "views": 3}).status_code == 200
    both = alice.post("records/posts", {**same, "number": 1})
    assert details(both, 409) == [("number", "not_unique"), *expected]
    batch = [{"title": "x", "slug": "y"}, {"title": "x", "slug": "y"}, same]
    answer = alice.post("records/posts/batch", {"records": batch})
    assert [(one["index"], one["field"]) for one in answer.json["details"]] == [
        (1, "title"),
        (1, "slug"),
        (2, "title"),
        (2, "slug"),
    ]
    lines = "title,slug\nx,y\nx,y\na,b\n"
    imported = alice("POST", "records/posts/import", data=lines, content_type="text/csv")
    assert [one["field"] for one in imported.json["details"]] == ["title", "slug"] * 2
    moved = [{"id": first["id"], "data": {"slug": "d"}}, {"id": other["id"], "data": same}]
    assert alice.patch("records/posts/batch", {"records": moved}).status_code == 200
    assert alice.get("records/posts").json["total"] == 2


def test_unique_index_conflict_for_every_field_type(root: Caller, alice: Caller) -> None:
    target = make_record_of(root, alice, "others")
    values = {
        "text": "é",
        "number": 0.1,
        "boolean": False,
        "datetime": "2026-11-20T12:00:00+02:00",
        "date": "2026-11-20",
        "email": "a@b.example",
        "url": "http://b.example",
        "reference": target,
    }
    schema = [{"name": f"of_{kind}", "type": kind} for kind in values]
    schema[-1]["collection"] = "others"
    sent = index(*(one["name"] for one in schema), unique=True)
    make_collection(root, schema=schema, indexes=[sent])
    record = {f"of_{kind}": value for kind, value in values.items()}
    make_record(alice, **record)
    again = record | {"of_datetime": "2026-11-20T10:00:00Z"}
    other = record | {"of_boolean": True}
    answer = alice.post("records/posts/batch", {"records": [other, again]})
    expected = [(1, name, "not_unique") for name in record]
    assert [(one["index"], one["field"], one["code"]) for one in answer.json["details"]] == expected


def make_record_of(root: Caller, alice: Caller, name: str) -> str:
    """The id of a record of a new collection."""
    make_collection(root, name)
    return str(make_record(alice, name)["id"])


def test_unique_index_ignores_records_with_null(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=SCHEMA, indexes=[SLUG])
    for values in ({"title": "a"}, {"slug": "b"}, {}):
        kept = [make_record(alice, **values) for _ in range(2)]
        batch = [{"id": one["id"], "data": {"views": 1}} for one in kept]
        assert alice.patch("records/posts/batch", {"records": batch}).status_code == 200
        assert alice.post("records/posts/batch", {"records": [values] * 2}).status_code == 201


def test_unique_index_conflict_is_hidden_by_rule_denial(root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[SLUG])
    make_record(alice, title="a", slug="b")
    root.patch(f"collections/{made['id']}", {"create_rule": 'title != "a"'})
    refused = alice.post("records/posts", {"title": "a", "slug": "b"})
    assert (refused.status_code, refused.json["error"]) == (403, "rule_denied")


def test_record_upsert_by_unique_index_of_one_field(root: Caller, alice: Caller) -> None:
    unique = [index("slug", unique=True), index("title", "views", unique=True)]
    make_collection(root, schema=SCHEMA, indexes=unique)
    url = "records/posts/batch?mode=upsert&on="
    make_record(alice, slug="a")
    records = {"records": [{"slug": "a", "views": 1}, {"slug": "b"}]}
    answer = alice.post(f"{url}slug", records)
    assert [len(answer.json[key]) for key in ("created", "updated")] == [1, 1]
    assert details(alice.post(f"{url}title", {"records": [{"title": "a"}]})) == [
        ("on", "invalid_option")
    ]


def test_unique_index_on_conflicting_records_is_409(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    made = make_collection(root, schema=SCHEMA)
    for caller, values in (
        *[(alice, {"title": "a", "slug": "b"})] * 3,
        (charlie, {"title": "a", "slug": "b"}),
        *[(alice, {"title": "a"})] * 2,
    ):
        make_record(caller, **values)
    url, body = f"collections/{made['id']}", {"indexes": [PUBLISHED, SLUG]}
    message = "1 combinations of title, slug occur more than once in an account."
    expected = [
        {"field": name, "code": "not_unique", "count": 1, "message": message}
        for name in ("title", "slug")
    ]
    assert root.post(f"{url}/plan", body).json["problems"] == expected
    refused = root.patch(url, body)
    assert (refused.status_code, refused.json["details"]) == (409, expected)
    assert root.get("collections/posts").json["indexes"] == []
    assert_agreement(app)
    for record in alice.get("records/posts?slug=b").json["items"][1:]:
        assert alice.delete(f"records/posts/{record['id']}").status_code == 204
    assert root.patch(url, body).status_code == 200
    assert_agreement(app)


def test_index_texts_share_byte_limit(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=SCHEMA, indexes=[SLUG, index("title", "-views")])
    assert make_record(alice, title="é" * 500, slug="x" * 1000)
    for values in ({"title": "é" * 501}, {"slug": "x" * 1001}, {"code": "x" * 2001}):
        refused = alice.post("records/posts", values)
        assert details(refused) == [(*values, "too_long")]
    long = {"name": "title", "default": "x" * 1001}
    url = f"collections/{made['id']}"
    assert details(root.patch(url, {"schema": [long]})) == [("title", "too_long")]
    tight = [index("title", "slug", "code")]
    assert details(root.patch(url, {"indexes": tight})) == [
        ("title", "too_long"),
        ("slug", "too_long"),
    ]
    assert_agreement(app)
