"""Collections made, extended and dropped: definition, table and revision go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections.models import Collection, Revision
from app.context import tenancy
from tests.builders import Caller, Cast, make_collection, make_record
from tests.collections.tables import inspected
from tests.parallel import at_once
from tests.sql import statements

TITLE = {"name": "title", "type": "text"}
FAILED = (500, 503)  # SQLite tells a failed statement and a busy database alike
NOWHERE = "019a9f00-0000-7000-8000-000000000001"
AWKWARD = """it's "so" 100% %s %(x)s :y \\ \\n {z} -- /* é 🎈 \n\t ; DROP"""


def tables(app: Flask) -> set[str]:
    with app.app_context():
        found = sa.inspect(db.db.engine).get_table_names()
        return {name for name in found if name.startswith("col_")}


def rows_of(app: Flask, model: type[Any]) -> int:
    with app.app_context():
        return db.db.session.scalar(sa.select(sa.func.count()).select_from(model)) or 0


def extend(root: Caller, made: dict[str, Any], *fields: dict[str, Any]) -> TestResponse:
    return root.put(f"collections/{made['id']}", {"schema": [*made["schema"], *fields]})


def execute(app: Flask, statement: str) -> None:
    with app.app_context(), tenancy.as_owner(), db.transaction():
        db.connection().exec_driver_sql(statement)


# --- Answers --------------------------------------------------------------------------------------


def test_new_collection_response_has_all_keys(root: Caller) -> None:
    answer = root.post("collections/", {"name": "Posts", "schema": [TITLE]})
    assert answer.status_code == 201
    made = answer.json
    assert list(made) == [
        "id",
        "name",
        "table_name",
        "schema",
        "fields",
        "field_count",
        "fields_count",
        "record_count",
        "records_count",
        "has_public_access",
        "options",
        "indexes",
        "created_at",
        "updated_at",
    ]
    assert (made["name"], made["table_name"]) == ("Posts", "col_posts")
    assert (made["field_count"], made["record_count"]) == (1, 0)
    assert (made["fields_count"], made["records_count"]) == (1, 0)
    assert made["fields"] == made["schema"]
    assert made["created_at"] == made["updated_at"]


def test_collection_lookup_by_id_and_by_name_in_any_case(root: Caller, alice: Caller) -> None:
    made = make_collection(root, "Posts")
    make_record(alice)
    make_record(root.acting_in("globex"))
    expected = made | {"record_count": 2, "records_count": 2}
    for reference in (made["id"], made["id"].upper(), "Posts", "posts", "POSTS"):
        assert root.get(f"collections/{reference}").json == expected


def test_collection_with_unknown_reference_is_404(root: Caller) -> None:
    for reference in [NOWHERE, "nothing", "a%00b", "%27", "x" * 300]:
        for answer in (
            root.get(f"collections/{reference}"),
            root.get(f"collections/{reference}/rules"),
            root.put(f"collections/{reference}/rules", {}),
        ):
            assert (answer.status_code, answer.json["error"]) == (404, "not_found")


def test_collection_update_and_deletion_by_name_are_422(root: Caller) -> None:
    make_collection(root)
    for answer in (
        root.put("collections/posts", {"schema": [TITLE]}),
        root.delete("collections/a"),
    ):
        assert answer.status_code == 422
        assert answer.json["detail"][0]["loc"] == ["path", "collection_id"]
    assert root.put(f"collections/{NOWHERE}", {"schema": [TITLE]}).status_code == 404
    assert root.delete(f"collections/{NOWHERE}").status_code == 404


def test_collection_list_is_sorted_by_name(root: Caller, alice: Caller) -> None:
    assert root.get("collections").json == {
        "items": [],
        "total": 0,
        "skip": 0,
        "limit": 25,
        "page": 1,
        "page_size": 25,
        "total_pages": 0,
    }
    made = {name: make_collection(root, name) for name in ("beta", "Alpha", "gamma_1")}
    make_record(alice, "beta")
    made["beta"]["record_count"] = made["beta"]["records_count"] = 1
    listed = root.get("collections").json
    assert listed["items"] == [made["Alpha"], made["beta"], made["gamma_1"]]
    assert (listed["total"], listed["total_pages"]) == (3, 1)
    page = root.get("collections?page=2&page_size=2").json
    assert ([c["name"] for c in page["items"]], page["total_pages"]) == (["gamma_1"], 2)
    assert [c["name"] for c in root.get("collections?search=A_").json["items"]] == ["gamma_1"]
    names = root.get("collections/names").json
    assert names == {"names": ["Alpha", "beta", "gamma_1"], "total": 3}


def test_collection_list_sorting(root: Caller) -> None:
    made = [make_collection(root, name) for name in ("beta", "Alpha", "gamma_1")]
    root.patch(f"collections/{made[1]['id']}", {"options": {"require_signature": True}})
    for query, expected in [
        ("sort_by=name&sort_order=asc", ["Alpha", "beta", "gamma_1"]),
        ("sort_by=created_at", ["beta", "Alpha", "gamma_1"]),
        ("sort_by=created_at&sort_order=desc", ["gamma_1", "Alpha", "beta"]),
        ("sort_by=updated_at&page_size=1&page=3", ["Alpha"]),
        ("sort_order=desc&search=a_", ["gamma_1"]),
    ]:
        listed = root.get(f"collections?{query}").json
        assert [c["name"] for c in listed["items"]] == expected, query
    for query in ("sort_by=schema", "sort_order=up"):
        assert root.get(f"collections?{query}").status_code == 422


@pytest.mark.one_database
def test_collection_list_with_unknown_parameter_is_422(root: Caller) -> None:
    for query in ["limit=0", "limit=101", "skip=-1", "page=0", "limit=x", "a=1"]:
        answer = root.get(f"collections?{query}")
        assert (answer.status_code, answer.json["detail"][0]["loc"][0]) == (422, "query")


ROUTES = [
    ("GET", "collections"),
    ("POST", "collections"),
    ("GET", "collections/names"),
    ("GET", "collections/{id}"),
    ("GET", "collections/posts"),
    ("PUT", "collections/{id}"),
    ("PATCH", "collections/{id}"),
    ("POST", "collections/{id}/plan"),
    ("GET", "collections/export"),
    ("POST", "collections/import"),
    ("DELETE", "collections/{id}"),
    ("GET", "collections/posts/rules"),
    ("PUT", "collections/posts/rules"),
    ("GET", "migrations"),
    ("GET", "migrations/current"),
    ("GET", "migrations/history"),
]


@pytest.mark.one_database
def test_collection_routes_require_superadmin(cast: Cast, anyone: Caller) -> None:
    made = make_collection(cast.root)
    for method, path in ROUTES:
        url = path.format(id=made["id"])
        for caller in (cast.alice, cast.bob, cast.charlie):
            # Told before the body is looked at.
            refused = caller(method, url, {"name": 5} if method in ("POST", "PUT") else None)
            assert (refused.status_code, refused.json["error"]) == (403, "superadmin_required")
        for headers in ({}, {"X-Account-ID": "acme"}, {"Authorization": "Bearer nonsense"}):
            assert anyone(method, url, headers=headers).status_code == 401
        assert cast.root.get("collections/posts").json == made


# --- Creating -------------------------------------------------------------------------------------


def test_collection_concurrent_creation_with_one_name_is_201_once(app: Flask, root: Caller) -> None:
    names = ["posts", "Posts"] * 5
    schemas = [[{"name": f"field_{i}", "type": "text", "unique": True}] for i in range(10)]
    bodies = [{"name": n, "schema": s} for n, s in zip(names, schemas, strict=True)]
    answers = at_once(len(bodies), lambda i: root.post("collections", bodies[i]))
    assert sorted(a.status_code for a in answers) == [201, *[409] * 9]
    assert {a.json["field"] for a in answers if a.status_code == 409} == {"name"}
    [made] = [a.json for a in answers if a.status_code == 201]
    assert root.get("collections").json["items"] == [made]
    assert tables(app) == {"col_posts"}
    assert rows_of(app, Revision) == 1
    with app.app_context():
        columns = {c["name"] for c in inspected("col_posts").get_columns("col_posts")}
    assert made["schema"][0]["name"] in columns
    assert len(columns) == 7


def test_collection_concurrent_creation_with_distinct_names_is_201(
    app: Flask, root: Caller
) -> None:
    bodies = [{"name": f"posts_{i}", "schema": [TITLE]} for i in range(6)]
    answers = at_once(len(bodies), lambda i: root.post("collections", bodies[i]))
    assert [a.status_code for a in answers] == [201] * 6
    revisions = root.get("migrations").json["revisions"][:6]
    assert [r["down_revision"] for r in revisions[:5]] == [r["revision"] for r in revisions[1:]]


def test_collection_creation_failure_stores_nothing(app: Flask, root: Caller) -> None:
    before = root.get("migrations").json
    execute(app, "CREATE TABLE col_posts (other INTEGER)")
    assert root.post("collections", {"name": "posts", "schema": [TITLE]}).status_code in FAILED
    assert root.get("collections").json["items"] == []
    assert root.get("collections/posts").status_code == 404
    assert root.get("migrations").json == before
    execute(app, "DROP TABLE col_posts")
    make_collection(root)


def test_collection_creation_failure_after_table_stores_nothing(app: Flask, root: Caller) -> None:
    # The index clashes, which is made after the table.
    execute(app, "CREATE TABLE col_other (a INTEGER)")
    execute(app, "CREATE INDEX ix_col_posts$created_at ON col_other (a)")
    assert root.post("collections", {"name": "posts", "schema": [TITLE]}).status_code in FAILED
    assert tables(app) == {"col_other"}
    assert (rows_of(app, Collection), rows_of(app, Revision)) == (0, 0)
    execute(app, "DROP TABLE col_other")
    make_collection(root)


def test_collection_creation_with_rules(root: Caller) -> None:
    rules = {"list_rule": "", "view_rule": "true", "list_fields": '["title"]', "view_fields": "*"}
    answer = root.post("collections", {"name": "posts", "schema": [TITLE], **rules})
    assert answer.status_code == 201
    kept = root.get("collections/posts/rules").json
    assert {key: kept[key] for key in rules} == rules | {"list_fields": ["title"]}
    assert [kept[f"{o}_rule"] for o in ("create", "update", "delete")] == [None, None, None]


# --- Deleting -------------------------------------------------------------------------------------


def test_collection_deletion_response_counts_records(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root, "Posts")
    make_record(alice)
    make_record(root.acting_in("globex"))
    answer = root.delete(f"collections/{made['id']}")
    assert answer.status_code == 200
    revision = root.get("migrations").json["revisions"][0]
    assert answer.json == {
        "message": "The collection and its records are deleted.",
        "collection_id": made["id"],
        "collection_name": "Posts",
        "table_name": "col_posts",
        "records_deleted": 2,
        "migration_revision": revision["revision"],
    }
    assert tables(app) == set()
    assert root.delete(f"collections/{made['id']}").status_code == 404
    assert alice.get("records/posts").status_code == 404
    assert alice.post("records/posts", {}).status_code == 404


def test_collection_deletion_while_referenced_is_409(root: Caller, alice: Caller) -> None:
    authors = make_collection(root, "Authors")
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    posts = make_collection(root, "posts", [reference])
    refused = root.delete(f"collections/{authors['id']}")
    assert (refused.status_code, refused.json["error"]) == (409, "conflict")
    assert "posts" in refused.json["message"]
    make_record(alice, "authors")
    assert root.delete(f"collections/{posts['id']}").status_code == 200
    assert root.delete(f"collections/{authors['id']}").status_code == 200


def test_collection_with_reference_to_itself_can_be_deleted(root: Caller, alice: Caller) -> None:
    made = make_collection(
        root, schema=[{"name": "parent", "type": "reference", "collection": "posts"}]
    )
    first = make_record(alice)
    make_record(alice, parent=first["id"])
    assert root.delete(f"collections/{made['id']}").json["records_deleted"] == 2


def test_collections_with_circular_references_are_deleted_together(
    root: Caller, alice: Caller
) -> None:
    ids = {name: make_collection(root, name)["id"] for name in ("authors", "posts", "tags")}
    title = {"name": "title", "type": "text"}
    for name, target in (("authors", "posts"), ("posts", "tags"), ("tags", "authors")):
        to = {"name": "to", "type": "reference", "collection": target}
        assert root.put(f"collections/{ids[name]}", {"schema": [title, to]}).status_code == 200
    tag = make_record(alice, "tags")
    author = make_record(alice, "authors", to=make_record(alice, to=tag["id"])["id"])
    alice.patch(f"records/tags/{tag['id']}", {"to": author["id"]})
    path = f"collections/{ids['authors']}"
    for query, named in (("", "tags"), ("?with=tags", "posts"), ("?with=authors", "tags")):
        refused = root.delete(path + query)
        assert refused.status_code == 409
        assert refused.json["message"].endswith(f": {named}.")
    wrong = root.delete(f"{path}?with=tags,nothing,posts,{NOWHERE}")
    assert (wrong.status_code, len(wrong.json["details"])) == (400, 2)
    assert {one["code"] for one in wrong.json["details"]} == {"invalid_reference"}
    assert alice.get("records/authors").json["total"] == 1
    gone = root.delete(f"{path}?with={ids['tags']},POSTS")
    assert (gone.status_code, gone.json["collection_name"]) == (200, "authors")
    others = [(one["collection_name"], one["records_deleted"]) for one in gone.json["also_deleted"]]
    assert others == [("tags", 1), ("posts", 1)]
    assert root.get("collections/names").json["total"] == 0
    assert (
        root.get("migrations").json["current_revision"]
        == (gone.json["also_deleted"][-1]["migration_revision"])
    )
    for name in ids:
        make_collection(root, name)


def test_collection_recreated_under_same_name_is_used_at_once(root: Caller, alice: Caller) -> None:
    for turn in range(4):
        name = f"field_{turn}"
        made = make_collection(root, schema=[{"name": name, "type": "text"}])
        record = make_record(alice, **{name: "x"})
        url = f"records/posts/{record['id']}"
        assert alice.get(url).json[name] == "x"
        assert alice.get(f"records/posts?{name}=x&sort={name}").json["items"] == [record]
        assert alice.patch(url, {name: "y"}).json[name] == "y"
        old = f"field_{turn - 1}"
        assert alice.get(f"records/posts?{old}=x").status_code == 400
        assert alice.post("records/posts", {old: "x"}).status_code == 400
        assert root.delete(f"collections/{made['id']}").status_code == 200
        assert [alice.get(path).status_code for path in (url, "records/posts")] == [404, 404]


# --- Adding fields --------------------------------------------------------------------------------

ADDED: list[tuple[dict[str, Any], Any, Any]] = [
    ({"type": "text"}, None, "x"),
    ({"type": "text", "required": True, "default": AWKWARD}, AWKWARD, "x"),
    ({"type": "text", "default": AWKWARD}, AWKWARD, "x"),
    ({"type": "text", "options": {"index": True}}, None, "x"),
    ({"type": "number", "required": True, "default": -0.5}, -0.5, 2**63 - 1),
    ({"type": "number", "default": 2**63 - 1}, 2**63 - 1, 1.5e-7),
    ({"type": "number", "default": 1e300}, 1e300, 0),
    ({"type": "boolean", "default": False}, False, True),
    ({"type": "boolean", "required": True, "default": True}, True, False),
    (
        {"type": "datetime", "default": "2026-11-20T12:00:00.5+02:00"},
        "2026-11-20T10:00:00.500000Z",
        "0001-01-01T00:00:00.000000Z",
    ),
    ({"type": "date", "default": "2026-02-28"}, "2026-02-28", "9999-12-31"),
    ({"type": "email", "default": "o'neil@example.com"}, "o'neil@example.com", "a@example.com"),
    ({"type": "url", "default": "https://a.example/%20"}, "https://a.example/%20", "http://b.io"),
    ({"type": "json", "default": {"b": [AWKWARD], "a": 1}}, {"b": [AWKWARD], "a": 1}, [1.5]),
]


@pytest.mark.long
def test_field_added_fills_existing_records_with_default(root: Caller, alice: Caller) -> None:
    for properties, filled, written in ADDED:
        made = make_collection(root)
        old = make_record(alice, title="a")
        new = {"name": "Order", **properties}
        answer = extend(root, made, new)
        assert answer.status_code == 200, answer.json
        assert [f["name"] for f in answer.json["schema"]] == ["title", "Order"]
        assert answer.json["updated_at"] > made["updated_at"]
        assert root.get("collections/posts").json == answer.json
        assert alice.get(f"records/posts/{old['id']}").json == old | {"Order": filled}
        assert make_record(alice)["Order"] == filled
        record = make_record(alice, Order=written)
        assert alice.get(f"records/posts/{record['id']}").json["Order"] == written
        assert len(alice.get("records/posts").json["items"]) == 3
        assert root.delete(f"collections/{made['id']}").status_code == 200


def test_field_added_required_without_default_needs_empty_collection(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root)
    required = {"name": "code", "type": "text", "required": True}
    record = make_record(alice)
    before = root.get("collections/posts").json
    answer = extend(root, made, required, {"name": "more", "type": "text"})
    assert answer.status_code == 400
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [("code", "required")]
    assert root.get("collections/posts").json == before
    assert alice.get(f"records/posts/{record['id']}").json == record
    assert rows_of(app, Revision) == 1
    alice.delete(f"records/posts/{record['id']}")
    assert extend(root, made, required).status_code == 200
    missing = alice.post("records/posts", {}).json["details"]
    assert [(d["field"], d["code"]) for d in missing] == [("code", "required_missing")]


def test_field_added_unique_with_default_fills_one_record_per_account(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    made = make_collection(root)
    unique = {"name": "code", "type": "text", "unique": True, "default": "x"}
    make_record(alice)
    second = make_record(alice)
    make_record(charlie)
    refused = extend(root, made, unique)
    assert (refused.status_code, refused.json["error"]) == (409, "conflict")
    assert "code" not in alice.get("records/posts").json["items"][0]
    alice.delete(f"records/posts/{second['id']}")
    assert extend(root, made, unique).status_code == 200
    assert alice.get("records/posts").json["items"][0]["code"] == "x"
    assert alice.post("records/posts", {}).status_code == 409


def test_field_added_keeps_rows_indexes_and_references(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    authors = make_collection(
        root,
        "authors",
        [
            {"name": "mail", "type": "email", "unique": True, "required": True},
            {"name": "age", "type": "number", "options": {"index": True}},
            {"name": "boss", "type": "reference", "collection": "authors"},
        ],
    )
    make_collection(
        root, "posts", [{"name": "author", "type": "reference", "collection": "authors"}]
    )
    boss = make_record(alice, "authors", mail="boss@acme.example", age=9007199254740993)
    ann = make_record(alice, "authors", mail="ann@acme.example", boss=boss["id"])
    post = make_record(alice, author=ann["id"])
    theirs = make_record(charlie, "authors", mail="ann@acme.example")
    before = shape(app, "col_authors")
    added = [
        {"name": "best", "type": "reference", "collection": "posts"},
        {"name": "friend", "type": "reference", "collection": "authors"},
        {"name": "code", "type": "number", "unique": True},
    ]
    assert extend(root, authors, *added).status_code == 200
    after = shape(app, "col_authors")
    assert before["indexes"] < after["indexes"]
    assert before["references"] < after["references"]
    assert len(after["references"]) == 3
    assert shape(app, "col_posts")["references"] == {("author", "col_authors")}
    empty = dict.fromkeys(("best", "friend", "code"))
    for caller, record in ((alice, boss), (alice, ann), (charlie, theirs)):
        assert caller.get(f"records/authors/{record['id']}").json == record | empty
    # Everything that the database held before, and what is new, it holds now.
    assert alice.post("records/authors", {"mail": "ann@acme.example"}).status_code == 409
    assert alice.delete(f"records/authors/{ann['id']}").status_code == 409
    assert alice.delete(f"records/authors/{boss['id']}").status_code == 409
    bad = alice.patch(f"records/authors/{ann['id']}", {"best": NOWHERE, "friend": theirs["id"]})
    assert [d["code"] for d in bad.json["details"]] == ["invalid_reference"] * 2
    good = {"best": post["id"], "friend": ann["id"], "code": 1}
    assert alice.patch(f"records/authors/{ann['id']}", good).status_code == 200
    assert alice.patch(f"records/authors/{boss['id']}", {"code": 1}).status_code == 409
    assert alice.delete(f"records/posts/{post['id']}").status_code == 409


def shape(app: Flask, table: str) -> dict[str, set[Any]]:
    with app.app_context():
        inspector = inspected(table)
        return {
            "indexes": {
                (i["name"], tuple(i["column_names"]), bool(i["unique"]))
                for i in inspector.get_indexes(table)
            },
            "references": {
                (k["constrained_columns"][1], k["referred_table"])
                for k in inspector.get_foreign_keys(table)
            },
        }


def test_field_added_checks_foreign_keys_of_its_table_only(
    app: Flask, database: str, root: Caller
) -> None:
    authors = make_collection(root, "authors")
    added = [{"name": "best", "type": "reference", "collection": "authors"}]
    with statements(app) as sent:
        made = make_collection(root)
        assert extend(root, made, *added).status_code == 200
        assert root.delete(f"collections/{authors['id']}?with=posts").status_code == 200
    checks = [one for one in sent if "foreign_key_check" in one]
    assert checks == (["PRAGMA foreign_key_check(col_posts)"] if database == "sqlite" else [])


def test_collection_update_with_forbidden_changes_is_400_per_field(
    app: Flask, root: Caller
) -> None:
    made = make_collection(root)
    for sent, problems in [
        ([{"name": "title", "type": "number"}], [("title", "type_change_not_allowed")]),
        ([{"name": "Title", "type": "text"}], [("title", "name_duplicate")]),
        ([TITLE | {"options": {"min": 5}}], [("title", "invalid_option")]),
        ([TITLE | {"default": 5}], [("title", "invalid_type")]),
        ([TITLE, TITLE], [("title", "name_duplicate")]),
        ([TITLE, {"name": "TITLE", "type": "text"}], [("TITLE", "name_duplicate")]),
        ([TITLE, {"name": "id", "type": "text"}], [("id", "name_reserved")]),
        (
            [{"name": "title", "type": "date"}, {"name": "a b", "type": "wibble"}],
            [
                ("a b", "name_invalid"),
                ("a b", "type_invalid"),
                ("title", "type_change_not_allowed"),
            ],
        ),
    ]:
        answer = root.put(f"collections/{made['id']}", {"schema": sent})
        assert answer.status_code == 400, answer.json
        assert [(d["field"], d["code"]) for d in answer.json["details"]] == problems
        assert root.get("collections/posts").json == made
        assert rows_of(app, Revision) == 1


@pytest.mark.one_database
def test_collection_update_without_schema_is_422(root: Caller) -> None:
    made = make_collection(root)
    for body in [{}, {"schema": []}, {"schema": None}, {"schema": "x"}, []]:
        assert root.put(f"collections/{made['id']}", body).status_code == 422


def test_field_options_null_are_stored_as_empty(root: Caller) -> None:
    named = {"name": "posts", "fields": [{**TITLE, "options": None}]}
    made = root.post("collections", named)
    assert (made.status_code, made.json["fields"][0]["options"]) == (201, {})
    path = f"collections/{made.json['id']}"
    assert root.put(path, {"schema": named["fields"]}).json == made.json
    root.patch(path, {"schema": [TITLE | {"options": {"max_length": 5}}]})
    emptied = root.patch(path, {"schema": [{"name": "title", "options": None}]})
    assert emptied.json["schema"][0]["options"] == {}


def test_collection_update_without_changes_makes_no_revision(app: Flask, root: Caller) -> None:
    make_collection(root, "Authors")
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    made = make_collection(root, "posts", [TITLE, reference])
    for schema in (made["schema"], [TITLE, reference], [reference, TITLE]):
        answer = root.put(f"collections/{made['id']}", {"schema": schema})
        assert (answer.status_code, answer.json) == (200, made)
    assert rows_of(app, Revision) == 2


def test_field_addition_failure_stores_nothing(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root)
    record = make_record(alice)
    before = root.get("migrations").json
    execute(app, "CREATE TABLE col_other (a INTEGER)")
    execute(app, "CREATE INDEX uq_col_posts$code ON col_other (a)")
    code = {"name": "code", "type": "text", "unique": True, "default": "x", "required": True}
    assert extend(root, made, code).status_code in FAILED
    assert root.get("collections/posts").json == made | {"record_count": 1, "records_count": 1}
    assert root.get("migrations").json == before
    assert alice.get(f"records/posts/{record['id']}").json == record
    assert make_record(alice).keys() == record.keys()
    execute(app, "DROP TABLE col_other")
    alice.delete(f"records/posts/{record['id']}")


def wait_for(happened: Callable[[], bool]) -> None:
    end = monotonic() + 20
    while not happened() and monotonic() < end:
        sleep(0.005)


@contextmanager
def writers(callers: list[Caller], write: Callable[[Caller, int], TestResponse]) -> Iterator[list]:
    """Each caller writes in a thread of its own; yields the answers so far."""
    stop, answers = Event(), list[TestResponse]()

    def run(caller: Caller) -> None:
        number = 0
        while not stop.is_set():
            answers.append(write(caller, number))
            number += 1

    with ThreadPoolExecutor(len(callers)) as pool:
        threads = [pool.submit(run, caller) for caller in callers]
        try:
            wait_for(lambda: len(answers) > 5 * len(callers))
            yield answers
            enough = len(answers) + 5 * len(callers)
            wait_for(lambda: len(answers) > enough)
        finally:
            stop.set()
        for thread in threads:
            thread.result()


@pytest.mark.long
def test_field_addition_concurrent_with_writes_loses_no_record(root: Caller, alice: Caller) -> None:
    make_collection(root, "authors")
    made = make_collection(root)
    added = [
        {"name": "code", "type": "number", "required": True, "default": 7},
        {"name": "author", "type": "reference", "collection": "authors"},
        {"name": "mark", "type": "text", "options": {"index": True}},
    ]

    def write(caller: Caller, number: int) -> TestResponse:
        answer = caller.post("records/posts", {"title": str(number)})
        if number % 2 and answer.status_code == 201:
            return caller.patch(f"records/posts/{answer.json['id']}", {"title": "changed"})
        return answer

    with writers([alice] * 10, write) as answers:
        extended = extend(root, made, *added)
    assert extended.status_code == 200, extended.json
    assert {a.status_code for a in answers} <= {200, 201}
    stored = all_records(alice)
    assert len(stored) == len(answers)
    assert {a.json["id"]: a.json["title"] for a in answers} == {r["id"]: r["title"] for r in stored}
    assert {r["code"] for r in stored} == {7}


def all_records(caller: Caller) -> list[dict[str, Any]]:
    total = caller.get("records/posts?limit=1").json["total"]
    pages = range(1, -(-total // 100) + 1)
    answers = [caller.get(f"records/posts?limit=100&sort=id&page={page}") for page in pages]
    return [record for answer in answers for record in answer.json["items"]]


def test_collection_deletion_concurrent_with_use_is_404(root: Caller, alice: Caller) -> None:
    make_collection(root, "others")

    def use(caller: Caller, number: int) -> TestResponse:
        paths = ("records/posts", "collections", "collections/posts")
        if number % 4 == 3:
            return alice.post("records/posts", {"title": "x"})
        return (alice if number % 4 == 0 else root).get(paths[number % 4])

    made = make_collection(root)
    with writers([root] * 4, use) as answers:
        assert root.delete(f"collections/{made['id']}").status_code == 200
    assert {a.status_code for a in answers} == {200, 201, 404}


# --- Revisions ------------------------------------------------------------------------------------


def test_migration_list_has_revision_for_every_table_change(root: Caller) -> None:
    core = root.get("migrations").json
    head = core["revisions"][0]
    assert (core["current_revision"], core["total"]) == (head["revision"], len(core["revisions"]))
    assert (head["is_head"], head["is_applied"], head["is_dynamic"]) == (True, True, False)
    made = make_collection(root)
    extend(root, made, {"name": "more", "type": "text"})
    root.put("collections/posts/rules", {"list_rule": None})
    root.delete(f"collections/{made['id']}")
    listing = root.get("migrations").json
    dynamic = listing["revisions"][:3]
    assert [r["description"] for r in dynamic] == [
        "delete collection posts",
        "add more to collection posts",
        "create collection posts",
    ]
    assert listing["revisions"][3:] == core["revisions"]
    assert [r["down_revision"] for r in dynamic] == [
        dynamic[1]["revision"],
        dynamic[2]["revision"],
        None,
    ]
    assert [r["is_head"] for r in dynamic] == [True, False, False]
    assert all(r["is_applied"] and r["is_dynamic"] for r in dynamic)
    assert listing["total"] == core["total"] + 3
    assert listing["current_revision"] == dynamic[0]["revision"]
    assert (
        set(dynamic[0])
        == set(head)
        == {
            "revision",
            "description",
            "is_applied",
            "is_head",
            "is_dynamic",
            "down_revision",
            "branch_labels",
            "created_at",
        }
    )
    assert root.get("migrations/history").json == listing
    current = root.get("migrations/current").json
    assert current == dict.fromkeys(("revision", "current_revision"), dynamic[0]["revision"])
