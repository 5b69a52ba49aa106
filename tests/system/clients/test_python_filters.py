"""Filters of the Python client: the server reads each as it was meant."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("\"'\\%&|!()[]\n\u2028"),
    min_size=1,
    max_size=30,
)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-5))])
VALUES = st.fixed_dictionaries(
    {
        "title": TEXTS,
        "points": st.integers(-(2**53), 2**53) | st.floats(-1e15, 1e15),
        "done": st.booleans(),
        "due": st.datetimes(timezones=ZONES).filter(lambda due: 1 < due.year < 9999),
        "day": st.dates(),
    }
)


@pytest.mark.usefixtures("tasks")
def test_python_client_filter_finds_generated_values(atrium: ModuleType, client: Any) -> None:
    tasks, F = client.records("tasks"), atrium.F

    @settings(
        max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(VALUES)
    def check(values: dict[str, Any]) -> None:
        made = tasks.create({name: as_json(value) for name, value in values.items()})
        equal = [F[name] == value for name, value in values.items()]
        same = reduce(and_, equal, F.id == made["id"])
        assert tasks.list(filter=same).total == 1, str(same)
        others = [F[name].not_in([value]) for name, value in values.items()]
        other = (F.id == made["id"]) & reduce(or_, others)
        assert tasks.list(filter=other).total == 0, str(other)

    check()


def as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


@pytest.mark.usefixtures("tasks")
def test_python_client_filter_conditions(atrium: ModuleType, client: Any) -> None:
    tasks, F = client.records("tasks"), atrium.F
    tasks.create_many(
        [
            {"title": "one", "points": 1, "done": True, "tags": ["a"]},
            {"title": "two", "points": -2, "done": False, "tags": ["a", "b"]},
            {"title": "three"},
        ]
    )
    cases = [
        (F.points < 0, ["two"]),
        (F.points <= 1, ["one", "two"]),
        (F.points > -2, ["one"]),
        (F.points >= -2, ["one", "two"]),
        (F.points == None, ["three"]),  # noqa: E711 - as in the filter language
        (F.points.is_null(), ["three"]),
        (F.points.is_not_null() & ~F.done, ["two"]),
        (F.done | F.title.like("%RE%"), ["one", "three"]),
        (F.title.not_like("t%"), ["one"]),
        (F.title != "one", ["three", "two"]),
        (F.title.in_(["one", "two"]), ["one", "two"]),
        (F.title.not_in(["one", "two"]), ["three"]),
        (F.title.in_([]), []),
        (F.title.not_in([]), ["one", "three", "two"]),
        (F.tags.contains("b"), ["two"]),
        (F.title == F["title"], ["one", "three", "two"]),
        (F.created_at > datetime(2020, 1, 1, tzinfo=UTC), ["one", "three", "two"]),
        ((F.points == 1) | (F.points == -2) & (F.title == "x"), ["one"]),
        (((F.points == 1) | (F.points == -2)) & (F.title == "two"), ["two"]),
        (atrium.any_of("tasks", (F.points < F["@record.points"]) & ~F.done), ["one"]),
        (atrium.count_of("tasks", F.title >= F["@record.title"]) == 2, ["three"]),
        ("points = 1", ["one"]),
    ]
    for condition, expected in cases:
        found = tasks.list(filter=condition, sort="title").items
        assert [record["title"] for record in found] == expected, str(condition)


def test_python_client_filter_serializes_values(atrium: ModuleType) -> None:
    F = atrium.F
    assert str(F.author.name == 'a"\\') == r'author.name = "a\"\\"'
    assert str(F["like"] == Decimal("1.50")) == "like = 1.50"
    assert str(F.id == UUID(int=1)) == 'id = "00000000-0000-0000-0000-000000000001"'
    mine = atrium.any_of("members", F.user == F["@request.auth.id"])
    assert str(mine) == "@any(members, user = @request.auth.id)"
    assert str(atrium.count_of("members", mine) > 2) == f"@count(members, {mine}) > 2"
    paid = (F["@account.plan"] == "pro") & atrium.flag("sla")
    assert str(paid) == '(@account.plan = "pro") && (@flag("sla"))'
    with pytest.raises(ValueError, match="no name of a flag"):
        atrium.flag('sla") || @flag("x')
    with pytest.raises(ValueError, match="no name of a collection"):
        atrium.any_of("members, true) || @any(members", mine)
    assert str(F.live == True) == "live = true"  # noqa: E712 - as in the filter language


@pytest.mark.parametrize(
    "wrong",
    [
        lambda F: F.due < datetime(2026, 1, 1),  # noqa: DTZ001 - that is what is wrong
        lambda F: F.points < float("nan"),
        lambda F: F.title == "\0",
        lambda F: F.title == "\ud800",
        lambda F: F["title = 1 || x"] == 1,
    ],
)
def test_python_client_filter_with_inexpressible_value_raises(
    atrium: ModuleType, wrong: Any
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        wrong(atrium.F)


def test_python_client_filter_in_boolean_context_raises(atrium: ModuleType) -> None:
    with pytest.raises(TypeError, match="&"):
        bool(atrium.F.a == 1)
