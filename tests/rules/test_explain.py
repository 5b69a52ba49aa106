"""Which part of a condition decided."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from random import Random
from typing import Any

import pytest

from app.rules import (
    Context,
    Name,
    Node,
    Scope,
    Sent,
    Subject,
    Type,
    condition,
    deciding,
    holds,
    surely,
    undecided,
)

SCOPE = Scope(
    {"n": Type.NUMBER, "t": Type.TEXT, "l": Type.LIST, **dict.fromkeys("abcd", Type.BOOLEAN)},
)
RECORD = {"n": 5, "t": None, "l": '["x"]', "a": True, "b": False, "c": None}
EVE = Subject("u1", role="editor")

DECIDED: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("n = 5", "n = 5", True, {"n": 5}),
    ("n = 5 && n > 9", "n > 9", False, {"n": 5}),
    ("n = 5 && n < 9", "n = 5 && n < 9", True, {"n": 5}),
    ("n = 4 || n < 9", "n < 9", True, {"n": 5}),
    ("n = 4 || n > 9", "n = 4 || n > 9", False, {"n": 5}),
    ("n = 5 && (t = 'x' || @has_role(admin))", "(t = 'x' || @has_role(admin))", False, {"t": None}),
    ("n = 4 || (t = 'x' || @has_role(editor))", "@has_role(editor)", True, {}),
    ("!(n = 4 || n = 5)", "n = 5", True, {"n": 5}),
    ("!!(n = 4 || n = 5)", "n = 5", True, {"n": 5}),
    ("!(n = 4)", "!(n = 4)", True, {"n": 5}),
    ("a && b", "b", False, {"b": False}),
    ("t != 'x'", "t != 'x'", True, {"t": None}),
    ("t IS NULL && n IN [1, 2]", "n IN [1, 2]", False, {"n": 5}),
    ("t = @request.auth.id", "t = @request.auth.id", False, {"t": None, "@request.auth.id": "u1"}),
    ("n * 2 = 11", "n * 2 = 11", False, {"n * 2": 10}),
    ("a && @contains(l, t)", "@contains(l, t)", False, {"l": ["x"], "t": None}),
    ("@contains(l, 'x') || b", "@contains(l, 'x')", True, {"l": ["x"]}),
    ("@owns_record()", "@owns_record()", False, {"created_by": None, "@request.auth.id": "u1"}),
    ("true", "true", True, {}),
]


@pytest.mark.parametrize(("text", "clause", "truth", "values"), DECIDED)
def test_rule_deciding_part_is_found(
    text: str, clause: str, truth: bool, values: dict[str, Any]
) -> None:
    scope = Scope({**SCOPE.fields, "created_by": Type.TEXT})
    found = deciding(condition(text, scope), text, Context(RECORD, EVE))
    assert (found.text, found.holds, found.values) == (clause, truth, values)
    assert text[found.position :].startswith(clause)


UNSURE: list[tuple[str, tuple[type[Node], ...], bool | None, str]] = [
    # what is not known, whether it holds, what decides or remains to be asked
    ("a || @request.data.b", (Sent,), True, "a"),
    ("@request.data.b || a", (Sent,), True, "a"),
    ("@request.data.a || b", (Sent,), None, "@request.data.a"),
    ("!(@request.data.a || b)", (Sent,), None, "@request.data.a"),
    ("@request.data.a && b", (Sent,), False, "b"),
    ("@request.data.a && @request.data.b", (Sent,), None, "@request.data.a && @request.data.b"),
    ("@request.data.n = n", (Sent,), None, "@request.data.n = n"),
    ("if(@request.data.a, true, true)", (Sent,), None, "if(@request.data.a, true, true)"),
    ("t = null || @has_role(editor)", (Name, Sent), True, "@has_role(editor)"),
    ("t = null && @has_role(admin)", (Name, Sent), False, "@has_role(admin)"),
    ("n = 5 || @has_role(admin)", (Name, Sent), None, "n = 5"),
    ("t = @request.auth.email", (Name, Sent), False, "t = @request.auth.email"),
    ("@now > '2020-01-01' && !a", (Name, Sent), None, "!a"),
]


@pytest.mark.parametrize(("text", "unknown", "truth", "part"), UNSURE)
def test_rule_deciding_part_with_unknown_values(
    text: str, unknown: tuple[type[Node], ...], truth: bool | None, part: str
) -> None:
    node = condition(text, SCOPE)
    record = {} if Name in unknown else RECORD
    context = Context(record, EVE, now=datetime(2026, 1, 1, tzinfo=UTC), unknown=unknown)
    assert surely(node, context) is truth
    if truth is None:
        left = undecided(node, context)
        assert text[left.start : left.end] == part
    else:
        found = deciding(node, text, context)
        assert (found.text, found.holds) == (part, truth)
        assert not found.values.keys() & {"t", "@request.data.b"}


def junction(dice: Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.2:
        return dice.choice("abcd")
    part = junction(dice, depth - 1)
    if dice.random() < 0.3:
        return f"!({part})"
    return f"({part} {dice.choice(('&&', '||'))} {junction(dice, depth - 1)})"


def test_rule_deciding_part_alone_determines_result() -> None:
    dice = Random(1)
    records = [
        dict(zip("abcd", values, strict=True)) for values in product((True, False), repeat=4)
    ]
    for _ in range(150):
        text = junction(dice, 3)
        whole = condition(text, SCOPE)
        for record in records:
            clause = deciding(whole, text, Context(record))
            part = condition(clause.text, SCOPE)
            for other in records:
                if holds(part, Context(other)) is clause.holds:
                    assert holds(whole, Context(other)) is holds(whole, Context(record)), text
