"""Lists of records: paging, order, filters by value, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import db
from app.context import tenancy
from tests.builders import Caller, make_collection, make_record
from tests.conftest import WHOLE
from tests.sql import statements

TYPES = [
    {"name": "text", "type": "text"},
    {"name": "number", "type": "number"},
    {"name": "boolean", "type": "boolean"},
    {"name": "datetime", "type": "datetime"},
    {"name": "date", "type": "date"},
    {"name": "email", "type": "email"},
    {"name": "url", "type": "url"},
    {"name": "json", "type": "json"},
    {"name": "select", "type": "select", "options": {"choices": ["b", "a"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["b", "a"]}},
    {"name": "reference", "type": "reference", "collection": "posts"},
]


def field(name: str, type: str = "text") -> dict[str, Any]:
    return {"name": name, "type": type}


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def listed(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    answer = caller.get("records/posts", query_string=query)
    assert answer.status_code == 200, answer.json
    items: list[dict[str, Any]] = answer.json["items"]
    return items


# --- Paging ---------------------------------------------------------------------------------------


def test_list_page_reports_skip_limit_page_and_total(root: Caller, alice: Caller) -> None:
    make_collection(root)
    made = [make_record(alice, title=str(i)) for i in range(5)][::-1]
    for query, skip, limit, page, count in [
        ("", 0, 30, 1, 5),
        ("skip=1", 1, 30, 1, 4),
        ("limit=2", 0, 2, 1, 2),
        ("skip=2&limit=2", 2, 2, 2, 2),
        ("skip=4&limit=2", 4, 2, 3, 1),
        ("skip=99&limit=2", 99, 2, 50, 0),
        ("page=1", 0, 30, 1, 5),
        ("page=2&limit=2", 2, 2, 2, 2),
        ("page=3&page_size=2", 4, 2, 3, 1),
        ("page=4&page_size=2", 6, 2, 4, 0),
        ("page_size=100", 0, 100, 1, 5),
        ("skip=0&page=3&limit=1", 0, 1, 1, 1),
        ("limit=3&page_size=2", 0, 3, 1, 3),
        ("skip=2147483647", 2147483647, 30, 71582789, 0),
        ("page=2147483647&limit=100", 214748364600, 100, 2147483647, 0),
    ]:
        answer = alice.get(f"records/posts?{query}")
        assert answer.status_code == 200, answer.json
        assert list(answer.json) == [
            "items",
            "total",
            "skip",
            "limit",
            "page",
            "page_size",
            "total_pages",
        ]
        assert answer.json == {
            "items": made[skip : skip + limit],
            "total": 5,
            "skip": skip,
            "limit": limit,
            "page": page,
            "page_size": limit,
            "total_pages": -(-5 // limit),
        }
        assert len(answer.json["items"]) == count


def test_list_of_empty_collection_has_zero_pages(root: Caller, alice: Caller) -> None:
    make_collection(root)
    answer = alice.get("records/posts").json
    assert (answer["items"], answer["total"], answer["total_pages"]) == ([], 0, 0)
    without = alice.get("records/posts?include_total=false").json
    assert (without["total"], without["total_pages"]) == (None, None)


def test_list_paging_out_of_range_is_422(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for query in [
        "limit=0",
        "limit=101",
        "limit=-1",
        "limit=x",
        "limit=",
        "limit=1.0",
        "limit=1e1",
        "limit=%EF%BC%91",
        "skip=-1",
        "skip=x",
        "skip=2147483648",
        "skip=99999999999999999999",
        "page=0",
        "page=x",
        "page_size=0",
        "page_size=101",
        "include_total=maybe",
        "include_count=2",
        "sort=" + "a" * 1001,
    ]:
        answer = alice.get(f"records/posts?{query}")
        assert (answer.status_code, answer.json["error"]) == (422, "validation_error")
        assert answer.json["detail"][0]["loc"] == ["query", query.partition("=")[0]]


def test_list_with_unknown_parameter_is_unknown_field(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for name in ["nope", "Title", "title__gt", "filter ", "Cursor", "$a"]:
        answer = alice.get("records/posts", query_string={name: "1"})
        assert problems(answer) == [(name, "unknown_field")]
        assert name in answer.json["details"][0]["message"]


def test_list_query_problems_are_reported_at_once(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    query = "nope=1&number=x&json={}&sort=gone,json,-number&fields=id,lost,text&date=1"
    query += "&filter=text%20%3D"
    assert sorted(problems(alice.get(f"records/posts?{query}"))) == [
        ("date", "invalid_date"),
        ("fields", "unknown_field"),
        ("filter", "filter_invalid"),
        ("json", "filter_invalid"),
        ("nope", "unknown_field"),
        ("number", "invalid_type"),
        ("sort", "invalid_option"),
        ("sort", "unknown_field"),
    ]
    both = alice.get("records/posts?nope=1&limit=0")
    assert both.status_code in (400, 422)


@pytest.mark.parametrize("name", ["include_total", "include_count"])
def test_list_total_can_be_omitted(root: Caller, alice: Caller, name: str) -> None:
    make_collection(root)
    made = make_record(alice)
    answer = alice.get(f"records/posts?{name}=false").json
    assert (answer["items"], answer["total"], answer["total_pages"]) == ([made], None, None)
    assert alice.get(f"records/posts?{name}=true").json["total"] == 1


def test_list_parameter_wins_over_field_of_same_name(root: Caller, alice: Caller) -> None:
    names = ("sort", "limit", "skip", "page", "page_size", "fields", "include_total")
    make_collection(root, schema=[field(name) for name in names])
    first = make_record(alice, **dict.fromkeys(names, "a"))
    second = make_record(alice, **dict.fromkeys(names, "b"))
    assert listed(alice, sort="-limit") == [second, first]
    assert listed(alice, sort="limit", limit=1) == [first]
    assert listed(alice, sort="sort", skip=1) == [second]
    assert listed(alice, page=2, page_size=1) == [first]
    assert listed(alice, sort="page", fields="fields,sort") == [
        {"id": r["id"], "sort": r["sort"], "fields": r["fields"]} for r in (first, second)
    ]
    assert alice.get("records/posts?limit=a").status_code == 422


def test_list_field_named_filter_is_reached_by_filter_expression_only(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, schema=[field("filter")])
    first, second = make_record(alice, filter="a"), make_record(alice, filter="b")
    assert listed(alice, filter="filter = 'a'") == [first]
    assert listed(alice, sort="filter", fields="filter")[1]["filter"] == second["filter"]
    assert problems(alice.get("records/posts?filter=a")) == [("filter", "filter_invalid")]


# --- Order ----------------------------------------------------------------------------------------

ORDERS: list[tuple[str, list[Any]]] = [
    ("text", ["", " ", "0", "A", "Z", "_", "a", "aa", "b", "é", "\uffff", "🎈", "🎉"]),
    (
        "number",
        [
            -1e300,
            -(2**63),
            -1.5,
            -1,
            0,
            5e-324,
            0.1,
            0.5,
            1,
            1.5,
            2,
            10,
            9007199254740992,
            9007199254740993,
            2**63 - 1,
            1e19,
            1e300,
        ],
    ),
    ("boolean", [False, True]),
    (
        "datetime",
        [
            "0001-01-01T00:00:00.000000Z",
            "1969-12-31T23:59:59.999999Z",
            "2026-11-20T11:00:00.000000Z",
            "2026-11-20T12:00:00+00:30",
            "2026-11-20T12:00:00.000000Z",
            "2026-11-20T12:00:00.000001Z",
            "9999-12-31T23:59:59.999999Z",
        ],
    ),
    ("date", ["0001-01-01", "1969-12-31", "2026-02-28", "2026-11-20", "9999-12-31"]),
    ("email", ["A@b.example", "a@b.example", "b@a.example"]),
    ("url", ["http://a.example", "https://A.example", "https://a.example"]),
]


def test_list_sort_order_of_every_type_has_nulls_last(root: Caller, alice: Caller) -> None:
    make_collection(
        root, schema=[field("place"), *(field(f"a_{type}", type) for type, _ in ORDERS)]
    )
    for type, values in ORDERS:
        name, places = f"a_{type}", list(range(len(values)))
        for place in (*places[1::2], *places[::2][::-1]):
            make_record(alice, place=f"{type} {place}", **{name: values[place]})
        nulls = [make_record(alice, place=f"{type} ")["id"] for _ in range(2)]
        for sort, order in ((name, places), (f"+{name}", places), (f"-{name}", places[::-1])):
            filter = f"place ~ '{type} %'"
            found = listed(alice, sort=sort, limit=100, filter=filter)
            assert [r["place"] for r in found] == [f"{type} {n}" for n in (*order, "", "")]
            assert [r["id"] for r in found[-2:]] == nulls


def test_list_sort_by_several_keys(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[field("a"), field("b", "number"), field("c", "boolean")])
    rows = [("x", 1, True), ("x", 2, None), ("y", 1, False), ("x", 2, True), (None, 3, None)]
    ids = [make_record(alice, a=a, b=b, c=c)["id"] for a, b, c in rows]

    def order(sort: str) -> list[int]:
        return [ids.index(r["id"]) for r in listed(alice, sort=sort)]

    assert order("a,b,c") == [0, 3, 1, 2, 4]
    assert order("-a,+b,-c") == [2, 0, 3, 1, 4]
    assert order("-b,a") == [4, 1, 3, 0, 2]
    assert order(" -b , a ") == [4, 1, 3, 0, 2]
    assert order("a") == [0, 1, 3, 2, 4]
    assert order("a,-id") == [3, 1, 0, 2, 4]
    assert order("a,a,-a") == [0, 1, 3, 2, 4]
    assert order("") == order("-created_at") == [4, 3, 2, 1, 0]
    assert order("created_at") == [0, 1, 2, 3, 4]
    assert order("account_id,updated_by") == [0, 1, 2, 3, 4]
    # A plus sign that was not escaped is a space by the time it arrives.
    plus = alice.get("records/posts?sort=-a,+b,-c").json["items"]
    assert [ids.index(r["id"]) for r in plus] == [2, 0, 3, 1, 4]


def test_list_parameter_with_empty_name_between_commas_is_invalid_option(
    root: Caller, alice: Caller
) -> None:
    make_collection(
        root, schema=[field("title"), {**field("by", "reference"), "collection": "posts"}]
    )
    id = make_record(alice, title="a")["id"]
    for name, good in (("sort", "title"), ("fields", "title"), ("expand", "by")):
        for text in (",", f"{good},", f",{good}", f"{good},,{good}", f"{good}, ,{good}"):
            paths = ["records/posts", *([] if name == "sort" else [f"records/posts/{id}"])]
            for path in paths:
                answer = alice.get(path, query_string={name: text})
                assert problems(answer) == [(name, "invalid_option")], (path, text)
        for text in ("", good, f" {good} "):
            assert alice.get("records/posts", query_string={name: text}).status_code == 200


def test_list_sort_by_unknown_or_json_field_is_400(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[field("title"), field("data", "json")])
    for sort, code in [
        ("nope", "unknown_field"),
        ("Title", "unknown_field"),
        ("title desc", "unknown_field"),
        ("--title", "unknown_field"),
        ("-", "unknown_field"),
        ("title;DROP TABLE users", "unknown_field"),
        ("1", "unknown_field"),
        ("data", "invalid_option"),
        ("title" + ",title" * 8, "invalid_option"),
    ]:
        answer = alice.get("records/posts", query_string={"sort": sort})
        assert problems(answer) == [("sort", code)]


texts = st.text(st.sampled_from("abAB é🎈_%'\\\uffff0"), max_size=3)
numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, 1.0, 2.0**53, 2**53 + 1]),
)
rows = st.fixed_dictionaries(
    {
        "text": st.none() | texts,
        "number": st.none() | numbers,
        "boolean": st.none() | st.booleans(),
        "datetime": st.none() | st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        "date": st.none() | st.dates().map(str),
    }
)
keys = st.lists(st.tuples(st.sampled_from(["", "+", "-"]), st.sampled_from(TYPES[:5])), max_size=3)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(rows, min_size=2, max_size=6), st.lists(keys, min_size=3, max_size=3))
def test_list_sort_equals_python_sort(
    app: Flask, root: Caller, alice: Caller, rows: list[dict[str, Any]], sorts: list[list[Any]]
) -> None:
    for made in root.get("collections").json["items"]:
        root.delete(f"collections/{made['id']}")
    make_collection(root, schema=TYPES[:5])
    stored = [make_record(alice, **row) for row in rows]
    for sort in sorts:
        expected = sorted(stored, key=lambda record: record["id"])
        for sign, one in reversed(sort):
            expected = stably_sorted(expected, one["name"], descending=sign == "-")
        asked = ",".join(sign + one["name"] for sign, one in sort) or "id"
        assert listed(alice, sort=asked, limit=100) == expected, asked


def stably_sorted(
    records: list[dict[str, Any]], name: str, *, descending: bool
) -> list[dict[str, Any]]:
    known = [r for r in records if r[name] is not None]
    # Texts of moments and dates in the one format sort as the instants do.
    known.sort(key=lambda record: record[name], reverse=descending)
    return [*known, *(r for r in records if r[name] is None)]


ABOUT_NULLS = [
    "number > 1",
    "number <= 1",
    "number = 1",
    "number != 1",
    "number = null",
    "number != null",
    "number IS NULL",
    "number IS NOT NULL",
    "number IN [1, 2]",
    "number NOT IN [1]",
    "!(number > 1)",
    "!(number IS NULL)",
    "1 < number",
    "number > 1 || text = 'x'",
    "number > 1 || number < 0",
    "number > 1 && text = 'x'",
    "text = 'x' || number IS NOT NULL",
    "(number > 1 && text = 'x') || (number IS NULL && text != 'x')",
    "coalesce(number, 5) > 1",
    "number + 1 > 2",
    "boolean",
    "text ~ 'x' && boolean",
]


@pytest.mark.long
@WHOLE
@pytest.mark.parametrize("index", [False, True])
def test_list_sort_by_filtered_field_loses_no_record(
    root: Caller, alice: Caller, database: str, index: bool, whole: bool
) -> None:
    """Every filter in one order with an index and in another without, by turns; or all in all."""
    sorts, start = ("number", "-number", "-text"), index + (database == "postgresql")
    fields = [{**one, "options": {"index": index}} for one in TYPES[:3]]
    make_collection(root, schema=fields)
    for number in (None, 1, 2, -1):
        for text in (None, "x", "y"):
            make_record(alice, number=number, text=text, boolean=text and text == "x")
    for turn, asked in enumerate(ABOUT_NULLS, start):
        found = listed(alice, filter=asked, sort="id", limit=100)
        assert 0 < len(found) < 12, asked
        for sort in sorts if whole else [sorts[turn % 3]]:
            ordered = stably_sorted(found, sort.lstrip("-"), descending=sort[0] == "-")
            assert listed(alice, filter=asked, sort=sort, limit=100) == ordered, (asked, sort)
            walk = {"filter": asked, "sort": sort, "limit": 2}
            walked, cursor = list[dict[str, Any]](), ""
            while cursor is not None:
                page = alice.get("records/posts", query_string={**walk, "cursor": cursor}).json
                walked, cursor = walked + page["items"], page["next_cursor"]
            assert walked == ordered, (asked, sort)


# --- Filters --------------------------------------------------------------------------------------

MATCHES: list[tuple[str, Any, Any, list[str]]] = [
    ("text", "a", "b", ["a"]),
    ("text", "", "b", [""]),
    ("text", "a b&c=d%_'\"\\;--é🎈", "A", ["a b&c=d%_'\"\\;--é🎈"]),
    ("text", "a", "A", ["a"]),
    ("number", 1, 2, ["1", "1.0", "+1", "01", "1e0", "10e-1"]),
    ("number", 0.1, 0.2, ["0.1", ".1", "1e-1"]),
    ("number", -5, 5, ["-5", "-5.0"]),
    ("number", 9007199254740993, 9007199254740992, ["9007199254740993"]),
    ("number", 1e300, 1e299, ["1e300", "1" + "0" * 300 + ".0"]),
    ("boolean", True, False, ["true", "True", "TRUE"]),
    ("boolean", False, True, ["false"]),
    (
        "datetime",
        "2026-11-20T12:00:00Z",
        "2026-11-20T12:00:00.000001Z",
        ["2026-11-20T12:00:00Z", "2026-11-20T12:00:00.000000Z", "2026-11-20T13:00:00+01:00"],
    ),
    ("date", "2026-11-20", "2026-11-21", ["2026-11-20"]),
    ("email", "a@b.example", "b@b.example", ["a@b.example"]),
    ("url", "https://a.example/?b=c", "https://b.example", ["https://a.example/?b=c"]),
]


def test_list_filter_by_value_of_every_type(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[field(f"f{n}", one[0]) for n, one in enumerate(MATCHES)])
    for n, (_, value, other, texts) in enumerate(MATCHES):
        wanted, _ = make_record(alice, **{f"f{n}": value}), make_record(alice, **{f"f{n}": other})
        for text in texts:
            assert listed(alice, **{f"f{n}": text}) == [wanted]
        assert len(listed(alice, **{f"f{n}": [texts[0], texts[-1]]})) == 1


def test_list_filter_by_system_field_or_reference(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    first = make_record(alice, text="a")
    second = make_record(alice, reference=first["id"])
    assert listed(alice, reference=first["id"]) == [second]
    assert listed(alice, id=first["id"]) == [first]
    assert listed(alice, id="nope") == []
    assert listed(alice, created_at=second["created_at"]) == [second]
    assert listed(alice, created_by=alice.id) == [second, first]
    assert listed(alice, account_id="other") == []


def test_list_filter_values_combine_by_or_and_fields_by_and(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[field("a"), field("b", "number")])
    for a in ("x", "y", "z"):
        for b in (1, 2):
            make_record(alice, a=a, b=b)

    def found(query: str) -> list[tuple[str, int]]:
        answer = alice.get(f"records/posts?sort=a,b&{query}").json
        assert answer["total"] == len(answer["items"])
        return [(r["a"], r["b"]) for r in answer["items"]]

    assert found("a=x") == [("x", 1), ("x", 2)]
    assert found("a=x&a=z&b=2") == [("x", 2), ("z", 2)]
    assert found("a=x&a=x&b=1&b=2") == [("x", 1), ("x", 2)]
    assert found("a=x&b=3") == []
    assert found("a=nope&a=y&b=1") == [("y", 1)]


def test_list_filter_value_of_wrong_type_is_400(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    for name, text, code in [
        ("number", "", "invalid_type"),
        ("number", "x", "invalid_type"),
        ("number", "1,5", "invalid_type"),
        ("number", "1 OR 1=1", "invalid_type"),
        ("number", "0x10", "invalid_type"),
        ("number", "1_000", "invalid_type"),
        ("number", "NaN", "invalid_type"),
        ("number", "Infinity", "invalid_type"),
        ("number", "\u0661", "invalid_type"),
        ("number", "1\n", "invalid_type"),
        ("number", "1" * 400 + "x", "invalid_type"),
        ("number", "1" * 5000, "number_out_of_range"),
        ("number", "1e999", "number_out_of_range"),
        ("number", "1e4000", "number_out_of_range"),
        ("boolean", "", "invalid_type"),
        ("boolean", "1", "invalid_type"),
        ("boolean", "yes", "invalid_type"),
        ("datetime", "now", "invalid_datetime"),
        ("datetime", "2026-02-30", "invalid_datetime"),
        ("datetime", "2026-02-30T00:00:00Z", "invalid_datetime"),
        ("date", "2026-11-20T00:00:00Z", "invalid_date"),
        ("date", "2026-02-30", "invalid_date"),
        ("json", "{}", "filter_invalid"),
        ("tags", "a", "filter_invalid"),
    ]:
        for value in (text, [text, text]):
            answer = alice.get("records/posts", query_string={name: value})
            assert problems(answer)[0] == (name, code)


def test_list_filter_sort_and_group_by_choices(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    for text, select, tags in (("x", "b", ["b", "a"]), ("y", "a", ["a"]), ("z", None, None)):
        make_record(alice, text=text, select=select, tags=tags)

    def texts(**query: Any) -> list[str]:
        return [one["text"] for one in listed(alice, **query)]

    assert texts(select=["a", "none"]) == ["y"]
    assert texts(sort="select") == ["y", "x", "z"]
    assert texts(filter="@contains(tags, 'b')") == ["x"]
    assert texts(filter="@contains(tags, select) && tags != null", sort="text") == ["x", "y"]
    assert texts(filter="!@contains(tags, 'a')") == ["z"]
    for query in ({"filter": "@contains(select, 'a')"}, {"filter": "tags = 'a'"}):
        assert problems(alice.get("records/posts", query_string=query)) == [
            ("filter", "filter_invalid")
        ]
    path = "records/posts/aggregate?functions=count()&group_by="
    groups = alice.get(f"{path}select").json["results"]
    assert {(one["select"], one["count"]) for one in groups} == {("a", 1), ("b", 1), (None, 1)}
    assert problems(alice.get(f"{path}tags")) == [("group_by", "invalid_option")]


def test_list_filter_value_outside_field_options_is_allowed(root: Caller, alice: Caller) -> None:
    limits = {"min_length": 2, "max_length": 3, "pattern": "^a", "choices": ["ab", "abc"]}
    make_collection(root, schema=[{**field("f"), "options": limits}, field("mail", "email")])
    make_record(alice, f="ab")
    assert [listed(alice, f=text) for text in ("a", "abcd", "b")] == [[], [], []]
    assert len(listed(alice, f=["ab", "nope"])) == 1
    assert listed(alice, mail="not an address") == []


def test_list_filter_over_100_values_is_filter_invalid(root: Caller, alice: Caller) -> None:
    make_collection(root)
    made = make_record(alice, title="99")
    assert listed(alice, title=[str(i) for i in range(100)]) == [made]
    answer = alice.get("records/posts", query_string={"title": ["a"] * 101})
    assert problems(answer) == [("title", "filter_invalid")]


def test_list_query_with_nul_is_422(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for query in ("title=a%00", "sort=%00", "fields=%00", "a%00=b"):
        assert alice.get(f"records/posts?{query}").status_code == 422


# --- Fields ---------------------------------------------------------------------------------------


def test_list_fields_parameter_limits_response(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    made = make_record(alice, text="x", number=1)
    for fields, names in [
        ("text", ["id", "text"]),
        ("number,text", ["id", "text", "number"]),
        ("id", ["id"]),
        (" text , id ", ["id", "text"]),
        ("text,text", ["id", "text"]),
        ("created_at,json", ["id", "created_at", "json"]),
        ("", ["id"]),
    ]:
        query = {"fields": fields}
        one = alice.get(f"records/posts/{made['id']}", query_string=query).json
        assert listed(alice, **query) == [one]
        assert list(one) == names
        assert one == {name: made[name] for name in names}


def test_list_fields_parameter_with_unknown_name_is_unknown_field(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, schema=TYPES)
    made = make_record(alice)
    for name in ["nope", "Text", "text.x", "*", "version", "version0", "text;--", "a" * 200]:
        for path in ("records/posts", f"records/posts/{made['id']}"):
            answer = alice.get(path, query_string={"fields": f"text,{name}"})
            assert problems(answer) == [("fields", "unknown_field")]


# --- Accounts and costs ---------------------------------------------------------------------------


def test_list_across_all_accounts_for_superadmin(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    make_collection(root)
    mine, theirs = make_record(alice, title="a"), make_record(charlie, title="b")
    everywhere = root.acting_in("*")
    assert listed(everywhere, sort="title") == [mine, theirs]
    assert listed(everywhere, account_id=charlie.account_id) == [theirs]
    assert listed(root) == []
    assert listed(root.acting_in("acme")) == [mine]
    assert listed(alice, account_id=charlie.account_id) == []
    assert everywhere.get(f"records/posts/{theirs['id']}").json == theirs
    assert everywhere.post("records/posts", {}).status_code == 400


def test_record_read_is_one_statement(root: Caller, alice: Caller, app: Flask) -> None:
    make_collection(root, schema=TYPES)
    made = make_record(alice, text="a", number=1)
    for path in [
        "records/posts",
        "records/posts?text=a&number=1&sort=-text,number&fields=text",
        "records/posts?include_total=false",
        "records/posts?skip=7",
        "records/posts?cursor=&text=nobody",
        "records/posts?text=nobody&expand=reference",
        "records/posts/{id}",
        "records/posts/{id}?fields=text",
    ]:
        url = path.format(id=made["id"])
        alice.get(url)
        with statements(app) as seen:
            assert alice.get(url).status_code == 200
        assert [text.split()[0] for text in seen] == ["SELECT"]


def test_list_newest_first_is_found_by_an_index(
    app: Flask, database: str, root: Caller, alice: Caller
) -> None:
    make_collection(root)
    make_record(alice)
    with app.app_context(), db.transaction():
        fill(database)
    with statements(app) as seen:
        assert alice.get("records/posts?include_total=false").status_code == 200
    explain = "EXPLAIN QUERY PLAN" if database == "sqlite" else "EXPLAIN"
    with app.app_context():
        answer = db.connection().exec_driver_sql(f"{explain} {seen[-1]}", seen[-1].parameters)
        plan = "\n".join(str(row[-1]) for row in answer)
    assert "ix_col_posts$created_at" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def fill(database: str) -> None:
    numbers = "generate_series(1, 3000) AS n(i)"
    moved = "created_at + i * interval '1 second'"
    if database == "sqlite":
        numbers = (
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
            " SELECT i FROM n)"
        )
        moved = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', created_at, i || ' seconds')"
    db.connection().exec_driver_sql(
        "INSERT INTO col_posts (account_id, id, created_at, updated_at)"  # noqa: S608 - constants
        f" SELECT account_id, id || i, {moved}, updated_at FROM col_posts, {numbers}",
        execution_options={"no_parameters": True},
    )
    with tenancy.as_owner():
        db.connection().exec_driver_sql("ANALYZE col_posts")
