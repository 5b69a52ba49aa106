"""How the databases find what lists ask for: by indexes, and late pages as cheaply as the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask

from app import crypto, db
from app.context import tenancy
from tests.builders import Caller, make_collection, make_record
from tests.sql import statements

FEW = 5000
MANY = 100_000
SCHEMA = [
    {"name": "views", "type": "number", "options": {"index": True}},
    {"name": "size", "type": "number", "options": {"index": True}, "required": True, "default": 0},
    {"name": "parent", "type": "reference", "collection": "posts"},
]
VALUES = {
    "views": "CASE WHEN i % 10 = 0 THEN NULL ELSE i / 4 END",
    "size": "i / 4",
    "parent": "id || i",
}
# None of them has an index of its own; two may be null.
FILTERED_AND_SORTED = [
    {"name": "open", "type": "boolean"},
    {"name": "rank", "type": "number"},
    {"name": "weight", "type": "number"},
    {"name": "score", "type": "number", "required": True, "default": 0},
]
FILTERED_AND_SORTED_VALUES = {
    "open": "i % 2 = 0",
    "rank": "CASE WHEN i % 10 = 0 THEN NULL ELSE i / 4 END",
    "weight": "CASE WHEN i % 10 = 0 THEN NULL ELSE i / 4 END",
    "score": "i / 4",
}
NEWEST, VIEWS, SIZE = "ix_col_posts$created_at", "ix_col_posts$views", "ix_col_posts$size"
PARENT = "ix_col_posts$parent"


def plan_of(caller: Caller, path: str, **query: Any) -> tuple[str, dict[str, Any]]:
    """How the database works on the last statement of a request, and the answer."""
    with statements(caller.app) as seen:
        answer = caller.get(path, query_string=query)
    assert answer.status_code == 200, answer.json
    statement = seen[-1]
    with caller.app.app_context(), tenancy.in_account(caller.account_id), tenancy.through_views():
        on_sqlite = db.db.engine.dialect.name == "sqlite"
        explain = "EXPLAIN QUERY PLAN" if on_sqlite else "EXPLAIN (ANALYZE, TIMING OFF)"
        rows = db.connection().exec_driver_sql(f"{explain} {statement}", statement.parameters)
        return "\n".join(str(row[-1]) for row in rows), answer.json


def fill(app: Flask, database: str, count: int, values: Mapping[str, str] = VALUES) -> None:
    """Copies of the one record, with values of their own by SQL of their number `i`."""
    numbers = f"generate_series(1, {count}) AS n(i)"
    moved = "created_at + i * interval '1 second'"
    if database == "sqlite":
        numbers = (
            f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"  # noqa: S608 - constants
            " SELECT i FROM n)"
        )
        moved = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', created_at, i || ' seconds')"
    with app.app_context(), db.transaction():
        db.connection().exec_driver_sql(
            f"INSERT INTO col_posts (account_id, id, created_at, updated_at, {', '.join(values)})"  # noqa: S608 - constants
            f" SELECT account_id, id || i, {moved}, updated_at, {', '.join(values.values())}"
            f" FROM col_posts, {numbers}",
            execution_options={"no_parameters": True},
        )
    if database == "postgresql":  # whose autovacuum does so; nothing does on SQLite
        with app.app_context(), db.transaction(), tenancy.as_owner():
            db.connection().exec_driver_sql("ANALYZE col_posts")


def sorts(plan: str) -> bool:
    """Whether all of a range is sorted, and not only what is equal in the indexed field."""
    whole = re.search(r"(?<!Incremental )Sort(?! Key| Method)", plan.replace("Full-sort", ""))
    return bool(whole) or "USE TEMP B-TREE FOR ORDER BY" in plan


def rows_read(plan: str) -> int:
    """Of PostgreSQL: how many rows came out of the table, at most, in one step."""
    scans = re.findall(r"Scan.* on col_posts.*actual rows=([0-9.]+)", plan)
    return max([0, *(int(float(one)) for one in scans)])


def check_lists(alice: Caller, database: str) -> None:
    for query, index in [
        ({}, NEWEST),
        ({"sort": "size"}, SIZE),
        ({"sort": "views"}, VIEWS),
        ({"sort": "-size"}, SIZE),
        ({"sort": "-views"}, VIEWS),
        ({"sort": "-views", "skip": 20}, VIEWS),
        ({"views": "7"}, VIEWS),
        ({"filter": "views >= 7 && views < 9"}, VIEWS),
    ]:
        plan, _ = plan_of(alice, "records/posts", include_total="false", **query)
        assert index in plan, (query, plan)
        assert "views" in query or "filter" in query or not sorts(plan), (query, plan)


def check_references(alice: Caller, target: str) -> None:
    plan, answer = plan_of(alice, "records/posts", parent=f"{target}7", include_total="false")
    assert (PARENT in plan, [one["id"] for one in answer["items"]]) == (True, [f"{target}7"])
    plan, answer = plan_of(alice, "records/posts", cursor="", limit=2, expand="parent")
    assert "pk_col_posts" in plan or "sqlite_autoindex_col_posts_1" in plan, plan
    first = answer["items"][0]
    assert first["expand"]["parent"]["id"] == first["id"]


def check_walks(alice: Caller, count: int) -> None:
    """The first page, one far behind and the last cost the same, there and back."""
    for sort, index in [
        ("-created_at", NEWEST),
        ("size", SIZE),
        ("-size", SIZE),
        ("views", VIEWS),
        ("-views", VIEWS),
    ]:
        for way, link in (("cursor", "next_cursor"), ("cursor_before", "prev_cursor")):
            middle = token_at(alice, sort, count // 2, way, link)
            for token in ("", middle):
                query = {way: token, "sort": sort, "limit": 10}
                plan, answer = plan_of(alice, "records/posts", **query)
                assert len(answer["items"]) == 10
                assert index in plan, (query, plan)
                assert not sorts(plan), (query, plan)
                assert rows_read(plan) <= 60, f"{query}\n{plan}"  # whole, however long it is


def token_at(alice: Caller, sort: str, place: int, way: str, link: str) -> str:
    """A cursor for a place deep in the list, made from a record as a page would make it."""
    query = {"sort": sort, "skip": place, "limit": 1, "fields": "id,created_at,views,size"}
    (there,) = alice.get("records/posts", query_string=query).json["items"]
    first = alice.get("records/posts", query_string={way: "", "sort": sort, "limit": 1}).json
    with alice.app.app_context():
        binding, _ = crypto.unsign(first[link], "cursor")
        position = [there[sort.lstrip("-")], there["id"]]
        return crypto.sign([binding, position], "cursor")


def test_list_queries_use_indexes(app: Flask, database: str, root: Caller, alice: Caller) -> None:
    make_collection(root, schema=SCHEMA)
    target = make_record(alice)["id"]
    fill(app, database, FEW)
    check_lists(alice, database)
    check_references(alice, target)
    check_walks(alice, FEW)


def test_list_filter_and_sort_use_one_index(
    app: Flask, database: str, root: Caller, alice: Caller
) -> None:
    specs = [["open", "-rank"], ["open", "weight"], ["open", "-score"], ["open", "-updated_at"]]
    sent = [{"fields": fields} for fields in specs]
    made = make_collection(root, schema=FILTERED_AND_SORTED, indexes=sent)
    make_record(alice)
    fill(app, database, FEW, FILTERED_AND_SORTED_VALUES)
    orders = {
        "-rank": "ix_col_posts$open$-rank",
        "weight": "ix_col_posts$open$weight",
        "-weight": "ix_col_posts$open$weight",
        "-score": "ix_col_posts$open$-score",
        "score": "ix_col_posts$open$-score",
        "-updated_at": "ix_col_posts$open$-updated_at",
    }
    for sort, index in orders.items():
        for conditions in ({"filter": "open = true"}, {"open": "true"}):
            check_order(alice, index, sort=sort, **conditions)
    for name, index in (("rank", "open$-rank"), ("weight", "open$weight")):
        query = {"filter": f"open = true && {name} > 7", "sort": f"-{name}"}
        check_order(alice, f"ix_col_posts${index}", **query)
    root.patch(f"collections/{made['id']}", {"list_rule": "open = true"})
    check_order(alice, orders["-rank"], sort="-rank")


def check_order(alice: Caller, index: str, **query: str) -> None:
    """By the index and without sorting: from the start, and both ways by cursor."""
    pages = [{"include_total": "false"}]
    for way, link in (("cursor", "next_cursor"), ("cursor_before", "prev_cursor")):
        first = alice.get("records/posts", query_string={way: "", "limit": 10, **query}).json
        pages.append({way: first[link]})
    for page in pages:
        plan, _ = plan_of(alice, "records/posts", **page, limit=10, **query)
        assert (index in plan, sorts(plan)) == (True, False), (page, query, plan)


@pytest.mark.slow
def test_list_queries_on_many_rows_use_indexes(
    app: Flask, database: str, root: Caller, alice: Caller
) -> None:
    make_collection(root, schema=SCHEMA)
    target = make_record(alice)["id"]
    fill(app, database, MANY)
    check_lists(alice, database)
    check_references(alice, target)
    check_walks(alice, MANY)


@pytest.mark.both_databases
def test_list_entry_is_found_by_index(
    app: Flask, database: str, root: Caller, alice: Caller, bob: Caller
) -> None:
    members = {"name": "members", "type": "user", "multiple": True}
    make_collection(root, schema=[members])
    seed = make_record(alice)
    fill(app, database, 1000, {"members": "NULL"})
    others = {"records": [{"members": [alice.id]}] * 400}
    assert alice.post("records/posts/batch", others).status_code == 201
    mine = make_record(alice, members=[alice.id, bob.id])["id"]
    if database == "postgresql":
        with app.app_context(), db.transaction(), tenancy.as_owner():
            db.connection().exec_driver_sql("ANALYZE record_links")
    for text in (f"@contains(members, '{bob.id}')", f"members = '{bob.id}'"):
        query = {"filter": text, "include_total": "false", "sort": "id"}
        plan, answer = plan_of(alice, "records/posts", **query)
        assert [one["id"] for one in answer["items"]] == [mine]
        assert "ix_record_links_" in plan, plan
        assert rows_read(plan) <= 1, plan
    assert seed["members"] is None
