"""Conditions that always or never hold: what is found is so for every record and caller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.rules import Context, Scope, Subject, Type, condition, holds
from app.rules.constants import parts, verdict

TYPES = {"n": Type.NUMBER, "t": Type.TEXT, "b": Type.BOOLEAN, "d": Type.DATE, "at": Type.DATETIME}
TYPES["e"] = Type.DECIMAL
SCOPE = Scope(TYPES, related=lambda name: SCOPE)

ALWAYS = [
    "true || n = 1",
    "n = 1 || n != 1",
    "n < 5 || n >= 5 || n = null",
    "!(n = 1 && n = 2)",
    "t IN ['a', 'b'] || t NOT IN ['a', 'b']",
    "b || !b",
    "b = true || b = false || b = null",
    "1 < 2",
    "t = null || t != null",
    "@has_role(admin) || !@has_role(admin)",
    "n != 1 || n != 2",
    "upper('a') = 'A' || t = 'x'",
    "n = at_least || true",
]
NEVER = [
    "n = 1 && n = 2",
    "n > 3 && n < 2",
    "n > 3 && n <= 3",
    "n >= 3 && n <= 3 && n != 3",
    "t = 'a' && t IN ['b', 'c']",
    "t > 'b' && t < 'a'",
    "b && b = false",
    "b && !b",
    "b != true && b != false && b != null",
    "t = 'a' && t = null",
    "n = 1 && !(n >= 1)",
    "d > '2026-02-01' && d < '2026-01-01'",
    "at > '2026-02-01' && at < '2026-01-01T00:00:00Z'",
    "@has_role(admin) && @has_role(viewer)",
    "@request.auth.role = 'admin' && @has_role(viewer)",
    "length(t) > 5 && length(t) < 3",
    "n = length(t) && length(t) != n",
    "n < length(t) && !(length(t) > n)",
    "@any(posts, n = 1 && n = 2)",
    "e > 1.5 && e < 1.50",
    "e = 1.5 && e = 2",
    "t IN []",
    "1 = 2",
    "false",
    "t ~ 'a%' && t !~ 'a%'",
    "(n = 1 || n = 2) && (n = 3 || n = 4)",
    "n * 2 > 4 && n * 2 < 3",
    "@request.auth.id = '' && @request.auth.id != ''",
]
NEITHER = [
    "n = 1",
    "n < 5 || n >= 5",
    "n != 1 && n != 2",
    "t = t",
    "n >= 3 && n <= 3",
    "b || b = false",
    "n = 1 || n = 2",
    "t ~ 'a%' && t ~ 'b%'",
    "@any(posts, n = 1) && !@any(posts, n = 2)",
    "@request.auth.id = '' && t = 'a'",
    "@request.auth.id = '' && @request.auth.id = null",
    "@now > at && @now < at || n = 1",
    "@count(posts, true) > 0",
    "@has_role(admin) || @has_role(viewer)",
    "@is_superadmin()",
    "t < 'b' && t > 'a'",
    "d = '2026-01-01' && at = '2026-01-02'",
    "e = 1.5 && e = 1.50",
    "e = 1.5 || e != 1.4",
]


def checked(text: str) -> Any:
    return condition(text.replace("at_least", "n"), SCOPE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ALWAYS),
        *((text, False) for text in NEVER),
        *((text, None) for text in NEITHER),
    ],
)
def test_verdict(text: str, expected: bool | None) -> None:
    assert verdict(checked(text)) is expected


def test_largest_parts_are_named() -> None:
    for text, expected in {
        "t = 'a' && (n = 1 && n = 2 || b)": [("n = 1 && n = 2", False)],
        "t = 'a' || (n = 1 && n = 2)": [("(n = 1 && n = 2)", False)],
        "t = 'a' && (b || !b) && 1 = 1": [("b || !b", True), ("1 = 1", True)],
        "n = 1 && n = 2": [("n = 1 && n = 2", False)],
        "t = 'a'": [],
    }.items():
        found = [(text[node.start : node.end], one) for node, one in parts(checked(text))]
        stripped = [(part.strip("()"), one) for part, one in found]
        assert stripped == [(part.strip("()"), one) for part, one in expected], text


NUMBERS = [None, 0, 1, 1.5, 2, 3]
TEXTS = [None, "", "a", "b", "c"]
BOOLEANS = [None, True, False]
DAYS = [None, date(2026, 1, 1), date(2026, 1, 2)]
MOMENTS = [None, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)]
DECIMALS = [None, Decimal("1.5"), Decimal(2)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROLES = [None, "admin", "viewer", "lead"]
VALUES = {"n": NUMBERS, "t": TEXTS, "b": BOOLEANS, "d": DAYS, "at": MOMENTS, "e": DECIMALS}


def situations(text: str) -> Iterator[Context]:
    """Each record and caller that an expression may tell from others."""
    named = {*re.findall(r"[a-z_]+", text)}
    values = [found if name in named else [None] for name, found in VALUES.items()]
    roles = ROLES if "@" in text else [None]
    for *record, role in product(*values, roles):
        subject = Subject(id="u" if role else None, role=role)
        yield Context(dict(zip(VALUES, record, strict=True)), subject, now=NOW)


OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
PLAIN = st.sampled_from(
    [
        *("b", "true", "false", "n = null", "n != null", "b = true", "b != false", "t != null"),
        *("@has_role(admin)", "@has_any_role([admin, lead])", "@request.auth.role = 'viewer'"),
        *("@request.auth.role != null", "n = length(t)", "length(t) != n", "length(t) > n"),
        *("n IN [1, 2]", "n NOT IN [0, 1.5]", "t IN ['a']", "t NOT IN ['a', 'b']", "t IN []"),
        *("t ~ 'a%'", "t !~ 'a%'", "1 = 2", "d < '2026-01-02'", "d >= '2026-01-02'"),
        *("at = '2026-01-01'", "at > '2026-01-01'", "d = at", "b = b", "length(t) < 1"),
    ]
)
COMPARED = st.one_of(
    st.builds("n {} {}".format, OPERATORS, st.sampled_from([0, 1, 1.5, 2])),
    st.builds("{} {} n".format, st.sampled_from([0, 1, 2]), OPERATORS),
    st.builds("e {} {}".format, OPERATORS, st.sampled_from(["1.5", "1.50", "2", "1"])),
    st.builds("t {} '{}'".format, OPERATORS, st.sampled_from(["", "a", "b"])),
)
CONDITIONS = st.recursive(
    PLAIN | COMPARED,
    lambda inner: st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("({} && {} && {})".format, inner, inner, inner),
    ),
    max_leaves=8,
)


@given(text=CONDITIONS)
@settings(max_examples=150, deadline=None)
def test_found_verdicts_are_those_of_every_record(text: str) -> None:
    node = checked(text)
    for part, always in parts(node):
        for context in situations(text):
            assert holds(part, context) is always, (text, context)
