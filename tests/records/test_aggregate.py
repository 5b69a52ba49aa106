"""`/records/{collection}/aggregate`."""

from __future__ import annotations

import math
import secrets
from fractions import Fraction
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app.rules import values
from tests.builders import Caller, make_collection, make_record
from tests.sql import statements

SCHEMA = [
    {"name": "kind", "type": "text"},
    {"name": "price", "type": "number"},
    {"name": "flag", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "tags", "type": "json"},
    {"name": "parent", "type": "reference", "collection": "posts"},
    {"name": "double", "type": "computed", "expression": "price * 2", "return_type": "number"},
    {"name": "loud", "type": "computed", "expression": "upper(kind)", "return_type": "text"},
    {"name": "secret", "type": "number"},
    {"name": "salary", "type": "number", "pii": True},
]


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def aggregated(caller: Caller, functions: str = "count()", **query: Any) -> dict[str, Any]:
    query = {"functions": functions, **query}
    answer = caller.get("records/posts/aggregate", query_string=query)
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def results(caller: Caller, functions: str = "count()", **query: Any) -> list[dict[str, Any]]:
    found = aggregated(caller, functions, **query)
    assert found["total_groups"] == len(found["results"])
    groups: list[dict[str, Any]] = found["results"]
    return groups


@pytest.fixture
def posts(root: Caller, alice: Caller) -> list[dict[str, Any]]:
    make_collection(root, schema=SCHEMA)
    rows: list[dict[str, Any]] = [
        {"kind": "a", "price": 0.1, "flag": True, "day": "2026-01-02", "salary": 1},
        {"kind": "a", "price": 0.2, "flag": False, "at": "2026-01-01T00:00:00Z"},
        {"kind": "a", "price": None, "flag": True, "tags": [1]},
        {"kind": "b", "price": 10, "flag": None, "at": "2026-02-01T00:00:00Z"},
        {"kind": None, "price": -4, "day": "2026-01-01"},
        {"kind": None, "price": 5},
    ]
    return [make_record(alice, **row) for row in rows]


def test_aggregate_functions_without_groups(alice: Caller, posts: list[dict[str, Any]]) -> None:
    functions = "count(),count(price),sum(price),avg(price),min(price),max(price),count(tags)"
    (everything,) = results(alice, functions)
    assert everything == {
        "count": 6,
        "count_price": 5,
        "sum_price": 11.3,
        "avg_price": 2.26,
        "min_price": -4,
        "max_price": 10,
        "count_tags": 1,
    }
    assert list(everything) == [
        "count",
        "count_price",
        "sum_price",
        "avg_price",
        "min_price",
        "max_price",
        "count_tags",
    ]
    (others,) = results(alice, "min(kind),max(loud),min(at),max(day),sum(double),COUNT( ),count()")
    assert others == {
        "min_kind": "a",
        "max_loud": "B",
        "min_at": "2026-01-01T00:00:00.000000Z",
        "max_day": "2026-01-02",
        "sum_double": 22.6,
        "count": 6,
    }
    assert results(alice, "count(),sum(price),min(kind)", filter="kind = 'none'") == [
        {"count": 0, "sum_price": None, "min_kind": None}
    ]


def test_aggregate_groups_are_sorted_and_null_is_one_group(
    alice: Caller, posts: list[dict[str, Any]]
) -> None:
    assert results(alice, "count(),sum(price)", group_by="kind") == [
        {"kind": "a", "count": 3, "sum_price": 0.3},
        {"kind": "b", "count": 1, "sum_price": 10},
        {"kind": None, "count": 2, "sum_price": 1},
    ]
    assert results(alice, group_by="flag, kind") == [
        {"flag": False, "kind": "a", "count": 1},
        {"flag": True, "kind": "a", "count": 2},
        {"flag": None, "kind": "b", "count": 1},
        {"flag": None, "kind": None, "count": 2},
    ]
    assert [one["loud"] for one in results(alice, group_by="loud")] == ["A", "B", None]
    assert [one["day"] for one in results(alice, group_by="day")] == [
        "2026-01-01",
        "2026-01-02",
        None,
    ]
    page = aggregated(alice, group_by="kind", skip=1, limit=1)
    assert page == {"results": [{"kind": "b", "count": 1}], "total_groups": 3}
    assert aggregated(alice, group_by="kind", skip=9) == {"results": [], "total_groups": 3}
    none = {"results": [], "total_groups": 0}
    assert aggregated(alice, group_by="kind", filter="kind = 'none'") == none


HAVING: list[tuple[str, list[str | None]]] = [
    ("count > 1", ["a", None]),
    ("count() > 1", ["a", None]),
    ("sum(price) >= 1 && count( ) < 2", ["b"]),
    ("sum_price = 0.3", ["a"]),
    ("SUM(price) * 10 = 3 || kind = null", ["a", None]),
    ("kind ~ 'B' && kind != 'count()'", ["b"]),
    ("kind = 'sum(price)'", []),
    ("max_at > '2026-01-15'", ["b"]),
    ("round(avg_price) = 0", ["a"]),
    ("max_at < now()", ["a", "b"]),
]


def test_aggregate_having_filters_groups(alice: Caller, posts: list[dict[str, Any]]) -> None:
    functions = "count(),sum(price),avg(price),max(at)"
    for having, kinds in HAVING:
        found = results(alice, functions, group_by="kind", having=having)
        assert [one["kind"] for one in found] == kinds, having


def test_aggregate_filters_equal_list_filters(alice: Caller, posts: list[dict[str, Any]]) -> None:
    assert results(alice, kind=["a", "b"], flag="true") == [{"count": 2}]
    assert results(alice, filter="price > 0 && kind = null") == [{"count": 1}]
    assert results(alice, filter="flag = true", having="count > 5") == []


def test_aggregate_problems_are_reported_at_once(
    alice: Caller, posts: list[dict[str, Any]]
) -> None:
    for query, expected in [
        ("", [("functions", "required")]),
        ("functions=", [("functions", "required")]),
        ("functions=count()&nope=1", [("nope", "unknown_field")]),
        ("functions=count()&sort=kind", [("sort", "unknown_field")]),
        ("functions=median(price)", [("functions", "invalid_option")]),
        ("functions=sum()", [("functions", "invalid_option")]),
        ("functions=count(*)", [("functions", "invalid_option")]),
        ("functions=sum(price", [("functions", "invalid_option")]),
        ("functions=sum(kind)", [("functions", "invalid_option")]),
        ("functions=avg(flag),min(flag),max(tags)", [("functions", "invalid_option")] * 3),
        ("functions=sum(lost)", [("functions", "unknown_field")]),
        ("functions=sum(price);drop table col_posts", [("functions", "invalid_option")]),
        ("functions=count()&group_by=lost", [("group_by", "unknown_field")]),
        ("functions=count()&group_by=tags", [("group_by", "invalid_option")]),
        ("functions=count()&group_by=kind;--", [("group_by", "unknown_field")]),
        ("functions=count()&having=price > 1", [("having", "filter_invalid")]),
        ("functions=count()&having=sum(price) > 1", [("having", "filter_invalid")]),
        ("functions=count()&having=count", [("having", "filter_invalid")]),
        ("functions=count()&having=@request.auth.id = 'x'", [("having", "filter_invalid")]),
        ("functions=count()&price=x", [("price", "invalid_type")]),
        (
            "functions=sum(kind)&group_by=lost&filter=kind =&having=&day=x",
            [
                ("day", "invalid_date"),
                ("filter", "filter_invalid"),
                ("functions", "invalid_option"),
                ("group_by", "unknown_field"),
            ],
        ),
        ("functions=" + ",".join(["count()"] * 51), [("functions", "invalid_option")]),
        ("functions=count()&group_by=" + ",".join(f"f{i}" for i in range(9)), None),
    ]:
        answer = alice.get(f"records/posts/aggregate?{query.replace(';', '%3B')}")
        found = sorted(problems(answer))
        if expected is None:
            assert ("group_by", "invalid_option") in found
        else:
            assert found == sorted(expected), query
    for query in ("limit=0", "limit=1001", "skip=-1", "limit=x"):
        answer = alice.get(f"records/posts/aggregate?functions=count()&{query}")
        assert answer.status_code == 422
    position = alice.get("records/posts/aggregate?functions=count()&having=count() > x").json
    assert position["details"][0]["position"] == 10


def test_aggregate_field_named_like_parameter_is_unambiguous(root: Caller, alice: Caller) -> None:
    names = ["count", "sum_n", "n", "filter", "having", "limit"]
    make_collection(root, schema=[{"name": name, "type": "number"} for name in names])
    make_record(alice, **dict.fromkeys(names, 3))
    for query in ("functions=count()&group_by=count", "functions=sum(n)&group_by=sum_n"):
        answer = alice.get(f"records/posts/aggregate?{query}")
        assert problems(answer) == [("group_by", "invalid_option")]
    assert results(alice, "sum(count)", group_by="filter,having") == [
        {"filter": 3, "having": 3, "sum_count": 3}
    ]
    assert results(alice, filter="having = 3 && limit = 3") == [{"count": 1}]


def test_aggregate_respects_list_rule_fields_and_masks(
    root: Caller, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    names = [one["name"] for one in SCHEMA if one["name"] != "secret"]
    make_collection(root, schema=SCHEMA, list_rule="@owns_record()", list_fields=names)
    for caller in (alice, alice, bob, charlie):
        make_record(caller, kind="a", price=1, secret=5, salary=100)
    assert [results(one)[0]["count"] for one in (alice, bob, charlie)] == [2, 1, 1]
    assert results(root.acting_in("acme"), "sum(secret)") == [{"sum_secret": 15}]
    assert results(root.acting_in("*"), "count()") == [{"count": 4}]
    assert results(alice, "sum(salary)") == [{"sum_salary": 200}]
    for query, code in [
        ("functions=sum(secret)", ("functions", "unknown_field")),
        ("functions=count(secret)", ("functions", "unknown_field")),
        ("functions=count()&group_by=secret", ("group_by", "unknown_field")),
        ("functions=count()&filter=secret > 1", ("filter", "filter_invalid")),
        ("functions=sum(salary)", ("functions", "invalid_option")),
        ("functions=count(salary)", ("functions", "invalid_option")),
        ("functions=count()&group_by=salary", ("group_by", "invalid_option")),
        ("functions=count()&salary=1", ("salary", "filter_invalid")),
    ]:
        assert problems(bob.get(f"records/posts/aggregate?{query}")) == [code]
    root.put("collections/posts/rules", {"list_rule": None})
    assert bob.get("records/posts/aggregate?functions=count()").status_code == 403
    anybody = Caller(bob.app).acting_in("acme")
    assert anybody.get("records/posts/aggregate?functions=count()").status_code == 401
    assert bob.get("records/none/aggregate?functions=count()").status_code == 404


def test_aggregate_is_one_statement(app: Flask, alice: Caller, posts: list[dict[str, Any]]) -> None:
    for query in ("group_by=kind&having=count>1", "filter=kind='none'&group_by=kind", "skip=5"):
        path = f"records/posts/aggregate?functions=count(),sum(price)&{query}"
        with statements(app) as sent:
            assert alice.get(path).status_code == 200
        assert len(sent) == 1


numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, places=2).map(float),
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chosen=st.lists(numbers, min_size=1, max_size=5))
@example(chosen=[0, 18_014_398_509_481_985])
@example(chosen=[0, -18_014_398_509_481_985])
def test_aggregate_sums_and_averages_are_decimal_exact(
    root: Caller, alice: Caller, chosen: list[float]
) -> None:
    if root.get("records/posts", headers={"X-Account-ID": "acme"}).status_code == 404:
        make_collection(root, schema=SCHEMA)
    kind = secrets.token_hex(8)
    stored = [make_record(alice, price=one, kind=kind)["price"] for one in chosen]
    exact = sum(Fraction(values.decimal(one)) for one in stored)
    (found,) = results(alice, "sum(price),avg(price),min(price),max(price)", kind=kind)
    assert (found["min_price"], found["max_price"]) == (min(stored), max(stored))
    assert found["sum_price"] == nearest(exact)
    assert found["avg_price"] == nearest(exact / len(stored))


def nearest(exact: Fraction) -> float | int | None:
    """The number of ours that is nearest."""
    if exact.denominator == 1 and -(2**63) <= exact < 2**63:
        return int(exact)
    try:
        double = float(exact)
    except OverflowError:
        return None
    if math.isinf(double):
        return None
    away = math.floor(abs(exact) + Fraction(1, 2)) * (1 if exact > 0 else -1)  # from zero
    if abs(exact) >= 2**53 and -(2**63) <= away < 2**63:
        return away
    return int(double) if double.is_integer() and -(2**63) <= double < 2**63 else double
