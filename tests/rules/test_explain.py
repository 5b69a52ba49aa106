"""Which part of a condition decided."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from app.rules import Asker, Context, Scope, Type, condition, deciding, holds

SCOPE = Scope(
    {"n": Type.NUMBER, "t": Type.TEXT, **dict.fromkeys("abcd", Type.BOOLEAN)},
)
RECORD = {"n": 5, "t": None, "a": True, "b": False, "c": None}
EVE = Asker("u1", role="editor")

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
    ("@owns_record()", "@owns_record()", False, {"created_by": None, "@request.auth.id": "u1"}),
    ("true", "true", True, {}),
]


@pytest.mark.parametrize(("text", "clause", "truth", "values"), DECIDED)
def test_the_part_that_decided(text: str, clause: str, truth: bool, values: dict[str, Any]) -> None:
    scope = Scope({**SCOPE.fields, "created_by": Type.TEXT})
    found = deciding(condition(text, scope), text, Context(RECORD, EVE))
    assert (found.text, found.holds, found.values) == (clause, truth, values)
    assert text[found.position :].startswith(clause)


def junction(dice: Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.2:
        return dice.choice("abcd")
    part = junction(dice, depth - 1)
    if dice.random() < 0.3:
        return f"!({part})"
    return f"({part} {dice.choice(('&&', '||'))} {junction(dice, depth - 1)})"


def test_with_the_deciding_part_as_it_is_nothing_else_matters() -> None:
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
