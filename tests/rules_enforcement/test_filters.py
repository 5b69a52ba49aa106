"""`filter=` and order: what a caller may ask about, and what not."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions
from tests.builders import Caller, Cast, make_collection, make_record
from tests.sql import statements

PEOPLE = [
    {"name": "name", "type": "text"},
    {"name": "secret", "type": "text"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "size", "type": "computed", "expression": "length(secret)", "return_type": "number"},
    {"name": "host", "type": "computed", "expression": "upper(mail)", "return_type": "text"},
]
POSTS = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "hidden", "type": "text"},
    {"name": "ssn", "type": "text", "pii": True, "mask_type": "ssn"},
    {"name": "author", "type": "reference", "collection": "people"},
    {"name": "double", "type": "computed", "expression": "views * 2", "return_type": "number"},
    {"name": "veiled", "type": "computed", "expression": "length(hidden)", "return_type": "number"},
    {"name": "tail", "type": "computed", "expression": "concat(ssn, '!')", "return_type": "text"},
]
SHOWN = ["title", "views", "ssn", "author", "double", "veiled", "tail"]


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def listed(caller: Caller, **query: Any) -> list[str]:
    answer = caller.get("records/posts", query_string=query)
    assert answer.status_code == 200, answer.json
    assert answer.json["total"] == len(answer.json["items"])
    return [item["title"] for item in answer.json["items"]]


@pytest.fixture
def library(cast: Cast) -> Cast:
    """bob wrote one of two posts; of people, everyone views only those they made themselves."""
    make_collection(
        cast.root,
        "people",
        PEOPLE,
        view_rule="@owns_record()",
        view_fields=["name", "mail", "size", "host"],
    )
    make_collection(cast.root, schema=POSTS, list_fields=SHOWN)
    for caller, name in ((cast.alice, "Ann"), (cast.bob, "Bob")):
        mail = f"{name}@example.com"
        person = make_record(caller, "people", name=name, secret=name, mail=mail)
        fields = {"views": len(name), "hidden": name, "ssn": "123456789", "author": person["id"]}
        make_record(caller, title=name, **fields)
    make_record(cast.bob, title="Nobody", views=9)
    return cast


REFUSED = [
    "hidden = 'Ann'",
    "hidden != null",
    "title = 'x' || hidden ~ '%'",
    "ssn = '123456789'",
    "length(ssn) > 3",
    "veiled = 3",
    "tail ~ '1%'",
    "author.secret = 'Ann'",
    "author.size = 3",
    "author.mail ~ 'a%'",
    "author.host ~ 'A%'",
    "@request.data.hidden = null",
    "@request.data.ssn = null",
    "author.author.name = 'x'",
    "title.name = 'x'",
    "nope = 1",
]


def test_filter_on_hidden_or_masked_field_is_refused_before_reading(
    app: Flask, library: Cast
) -> None:
    bob = library.bob
    queries = [({"filter": text}, "filter", "filter_invalid") for text in REFUSED]
    for name in ("hidden", "veiled"):
        queries += [({"sort": name}, "sort", "unknown_field"), ({name: "3"}, name, "unknown_field")]
    for name in ("ssn", "tail"):
        queries += [
            ({"sort": f"-{name}"}, "sort", "invalid_option"),
            ({name: "123456789"}, name, "filter_invalid"),
        ]
    for query, place, code in queries:
        bob.get("records/posts")
        with statements(app) as sent:
            answer = bob.get("records/posts", query_string=query)
        assert problems(answer) == [(place, code)], query
        assert not [one for one in sent if "col_" in one], query
        if place == "filter":
            assert answer.json["details"][0]["position"] >= 0
        said = answer.json["details"][0]["message"]
        masked = [name for name in ("ssn", "tail", "mail", "host") if name in str(query)]
        # Of what is hidden nothing is told, of what is seen masked that it is.
        assert [name for name in masked if said.startswith(f"You see {name} masked")] == masked
        assert ("masked" in said) is bool(masked), query


def test_filter_errors_of_hidden_and_unknown_field_are_equal(library: Cast) -> None:
    for name in ("hidden", "veiled"):
        found, absent = (
            library.bob.get("records/posts", query_string={"filter": f"{one} = null"}).text
            for one in (name, "q" * len(name))
        )
        assert found.replace(name, "#") == absent.replace("q" * len(name), "#")


def test_filter_on_hidden_field_is_allowed_for_superadmin_and_pii_access(library: Cast) -> None:
    root = library.root.acting_in("acme")
    assert listed(root, filter="hidden = 'Ann' && tail = '123456789!'") == ["Ann"]
    assert listed(root, filter="veiled = 3", sort="title") == ["Ann", "Bob"]
    assert listed(library.alice, filter="ssn = '123456789'", sort="tail,title") == ["Ann", "Bob"]
    assert problems(
        library.alice.get("records/posts", query_string={"filter": "hidden = 'Ann'"})
    ) == [("filter", "filter_invalid")]


def test_filter_through_reference_reaches_viewable_records_only(library: Cast) -> None:
    alice, bob, root = library.alice, library.bob, library.root.acting_in("acme")
    for name in ("Ann", "Bob"):
        for caller, views in ((alice, "Ann"), (bob, "Bob"), (root, name)):
            wanted = [name] if views == name else []
            assert listed(caller, filter=f"author.name = '{name}'") == wanted
    # What is out of sight is null, as where there is no author at all.
    assert listed(bob, filter="author.name = null", sort="title") == ["Ann", "Nobody"]
    assert listed(bob, filter="author.name != 'Bob'", sort="title") == ["Ann", "Nobody"]
    assert listed(alice, filter="author.mail ~ 'ann@%'") == ["Ann"]
    assert listed(alice, filter="author.host = 'ANN@EXAMPLE.COM'") == ["Ann"]
    everywhere = library.root.acting_in("*")
    assert listed(
        everywhere, filter="author.name = 'Ann' || author.secret = 'Bob'", sort="title"
    ) == [
        "Ann",
        "Bob",
    ]


def test_filter_through_reference_to_closed_collection_is_filter_invalid(
    library: Cast, anyone: Caller
) -> None:
    assert library.root.post("roles", {"name": "nobody"}).status_code == 201
    for rule in (None, "false", "@has_role(nobody)"):
        assert library.root.put("collections/people/rules", {"view_rule": rule}).status_code == 200
        asked = library.alice.get("records/posts", query_string={"filter": "author.name = 'Ann'"})
        assert problems(asked) == [("filter", "filter_invalid")]
    library.root.put("collections/posts/rules", {"list_rule": ""})
    nobody = anyone.acting_in("acme")
    for rule, status in (("", 200), ("name = 'Ann'", 200), ("true", 400), ("@owns_record()", 400)):
        library.root.put("collections/people/rules", {"view_rule": rule})
        asked = nobody.get("records/posts", query_string={"filter": "author.name != null"})
        assert asked.status_code == status, rule
        if status == 200:
            titles = {item["title"] for item in asked.json["items"]}
            assert titles == ({"Ann", "Bob"} if rule == "" else {"Ann"})


def test_filter_through_reference_follows_rule_changes(library: Cast) -> None:
    ask = "author.name ~ '%'"
    assert listed(library.bob, filter=ask) == ["Bob"]
    library.root.put("collections/people/rules", {"view_rule": "true"})
    assert listed(library.bob, filter=ask, sort="title") == ["Ann", "Bob"]
    library.root.put("collections/people/rules", {"view_fields": ["mail"]})
    assert library.bob.get("records/posts", query_string={"filter": ask}).status_code == 400


def test_filter_combines_with_other_parameters(library: Cast) -> None:
    bob = library.bob
    assert listed(bob, filter="views > 2", title="Bob") == ["Bob"]
    assert listed(bob, filter="views > 3", title="Bob") == []
    assert listed(bob, filter="views > 2 || title = 'x'", double="18") == ["Nobody"]
    assert listed(bob, filter="", title=["Ann", "Nobody"], sort="title") == ["Ann", "Nobody"]
    library.root.put("collections/posts/rules", {"list_rule": "views = 3 || views = 9"})
    assert listed(bob, filter="title != 'Ann' || views = 9", sort="title") == ["Bob", "Nobody"]
    both = bob.get("records/posts?filter=nope&hidden=1&sort=gone")
    assert sorted(problems(both)) == [
        ("filter", "filter_invalid"),
        ("hidden", "unknown_field"),
        ("sort", "unknown_field"),
    ]


def test_list_total_equals_visible_rows(library: Cast) -> None:
    bob = library.bob
    library.root.put("collections/posts/rules", {"list_rule": "@owns_record()"})
    assert listed(bob, filter="title ~ '%'", sort="title") == ["Bob", "Nobody"]
    assert bob.get("records/posts?limit=1&skip=5").json["total"] == 2
    before = [bob.get(f"records/posts?sort={key}").text for key in ("title", "-double,views")]
    root = library.root.acting_in("acme")
    for record in root.get("records/posts").json["items"]:
        change = root.patch(f"records/posts/{record['id']}", {"hidden": record["title"][::-1] * 3})
        assert change.status_code == 200
    after = [bob.get(f"records/posts?sort={key}") for key in ("title", "-double,views")]
    assert [strip(one.text) for one in after] == [strip(text) for text in before]


def strip(text: str) -> list[tuple[Any, ...]]:
    from json import loads

    body = loads(text)
    return [(item["id"], item["title"]) for item in body["items"]] + [(body["total"],)]


COMPUTED = [
    {"name": "title", "type": "text"},
    {"name": "n", "type": "number"},
    {"name": "at", "type": "datetime"},
    {
        "name": "c_text",
        "type": "computed",
        "expression": "nullif(title, '')",
        "return_type": "text",
    },
    {"name": "c_number", "type": "computed", "expression": "10 / n", "return_type": "number"},
    {
        "name": "c_boolean",
        "type": "computed",
        "expression": "if(n > 0, true, if(n < 0, false, null))",
        "return_type": "boolean",
    },
    {
        "name": "c_datetime",
        "type": "computed",
        "expression": "date_add(at, n, 'months')",
        "return_type": "datetime",
    },
]
ROWS = [
    ("Zoë", 4, "2026-01-31T12:00:00Z"),
    ("zoe", 0, None),
    ("", -2.5, "2024-05-31T00:00:00Z"),
    ("é", None, "2024-01-31T00:00:00Z"),
    ("Zoe", 1, "2025-01-31T00:00:00Z"),
    ("🎈", -1, "2020-02-29T23:59:59.999999Z"),
    ("\uffee", 3, "1999-12-31T00:00:00Z"),
]


def test_lists_sort_and_filter_by_computed_fields(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=COMPUTED)
    made = [make_record(alice, title=t, n=n, at=at) for t, n, at in ROWS]
    assert [one["c_number"] for one in made] == [2.5, None, -4, None, 10, -10, 10 / 3]
    assert [one["c_boolean"] for one in made] == [True, None, False, None, True, False, True]
    assert [one["c_text"] for one in made] == [t or None for t, _, _ in ROWS]
    assert made[0]["c_datetime"] == "2026-05-31T12:00:00.000000Z"
    assert made[4]["c_datetime"] == "2025-02-28T00:00:00.000000Z"
    for name in ("c_text", "c_number", "c_boolean", "c_datetime"):
        for sign in ("", "-"):
            found = alice.get("records/posts", query_string={"sort": f"{sign}{name},id"}).json
            present = [one for one in made if one[name] is not None]
            wanted = sorted(present, key=lambda one: one[name], reverse=sign == "-")
            shown = [one[name] for one in found["items"]]
            assert shown == [one[name] for one in wanted] + [None] * (len(made) - len(present))
            assert [o["id"] for o in found["items"]][len(present) :] == [
                o["id"] for o in made if o[name] is None
            ]
        for one in made:
            if one[name] is not None:
                value = str(one[name]).lower() if name == "c_boolean" else one[name]
                same = {o["id"] for o in made if o[name] == one[name]}
                text = f"'{value}'" if isinstance(one[name], str) else value
                for query in ({name: value}, {"filter": f"{name} = {text}"}):
                    found = alice.get("records/posts", query_string=query)
                    assert {o["id"] for o in found.json["items"]} == same, query


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_computed_text_sort_order_is_by_code_point_in_any_locale(app: Flask, root: Caller) -> None:
    """Also in groups, and where a database's own order is that of a language."""
    texts = ["'x'", "concat(n, 'x')", "if(n > 1, 'a', 'B')", "coalesce(title, 'x')", "title"]
    fields = [
        {"name": f"k{i}", "type": "computed", "expression": text, "return_type": "text"}
        for i, text in enumerate(texts)
    ]
    stored = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
    make_collection(root, schema=[*stored, *fields])
    make_record(root.acting_in("acme"), n=1)
    with app.app_context():
        posts = definitions.get("posts")
        orders = [sa.func.pg_collation_for(posts.expressions[one["name"]]) for one in fields]
        assert set(db.connection().execute(sa.select(*orders)).one()) == {'"C"'}
        db.db.session.remove()


CONSTANTS = [
    ("number", "2"),
    ("number", "-0.5"),
    ("number", "coalesce(3)"),
    ("number", "null"),
    ("text", "'x'"),
    ("text", "null"),
    ("boolean", "true"),
    ("boolean", "null IS NULL"),
    ("datetime", "'2026-01-01'"),
]


@pytest.mark.parametrize(("kind", "expression"), CONSTANTS)
def test_computed_constant_can_be_sorted_and_grouped_by(
    root: Caller, alice: Caller, kind: str, expression: str
) -> None:
    always = {"type": "computed", "expression": expression, "return_type": kind}
    make_collection(root, schema=[{"name": "n", "type": "number"}, {"name": "k", **always}])
    for n in (2, 3, 1):
        make_record(alice, n=n)
    for sign in ("", "-"):
        found = alice.get("records/posts", query_string={"sort": f"{sign}k,n"})
        assert [one["n"] for one in found.json["items"]] == [1, 2, 3]
    value = found.json["items"][0]["k"]
    extremes = "sum(k)" if kind == "number" else "count(k)" if kind == "boolean" else "min(k)"
    asked = {"functions": f"count(),{extremes}", "group_by": "k"}
    groups = alice.get("records/posts/aggregate", query_string=asked).json["results"]
    assert [(one["k"], one["count"]) for one in groups] == [(value, 3)]


@pytest.mark.parametrize("expression", ["n IS NULL", "n != 1", "n > 1 || n < 0", "title ~ 'a%'"])
def test_computed_condition_as_sort_key_pages_through_whole_list(
    root: Caller, alice: Caller, expression: str
) -> None:
    asked = {"type": "computed", "expression": expression, "return_type": "boolean"}
    stored = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
    make_collection(root, schema=[*stored, {"name": "k", **asked}])
    for title, n in (("a", 1), ("b", None), (None, 2), ("ab", None), ("c", -1)):
        make_record(alice, title=title, n=n)
    for sort in ("k,id", "-k,id"):
        whole = alice.get("records/posts", query_string={"sort": sort}).json["items"]
        walked, cursor = [], ""
        while cursor is not None and len(walked) <= len(whole):
            page = {"sort": sort, "limit": 1, "cursor": cursor}
            found = alice.get("records/posts", query_string=page).json
            walked += found["items"]
            cursor = found["next_cursor"]
        assert walked == whole


def test_datetime_text_is_parsed_alike_by_field_and_filter(root: Caller, alice: Caller) -> None:
    make_collection(root, "visits", [{"name": "dt", "type": "datetime"}])
    made = make_record(alice, "visits", dt="2023-01-29t00:00:00z")
    assert made["dt"] == "2023-01-29T00:00:00.000000Z"
    make_record(alice, "visits", dt="2023-01-29T00:00:01Z")
    for text in ("2023-01-29", "2023-01-29T00:00:00Z", "2023-01-29t00:00:00z"):
        for query in ({"dt": text}, {"filter": f'dt = "{text}"'}):
            found = alice.get("records/visits", query_string=query).json
            assert [record["id"] for record in found["items"]] == [made["id"]], query
    for text in ("2023-02-29", "2023-1-29", "today"):
        for query in ({"dt": text}, {"filter": f'dt = "{text}"'}):
            assert alice.get("records/visits", query_string=query).status_code == 400, query
    assert alice.post("records/visits", {"dt": "2023-01-29"}).status_code == 400
