"""Both back ends give the same value for every expression, every row and whoever asks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from app.rules import Asker, Type, functions, value
from app.rules.nodes import Arithmetic, Call, Comparison, IsNull, Junction, Membership, Not, walk
from app.rules.parser import parse
from tests.rules import generator
from tests.rules.backends import SCOPE, Backend, python_value, same

Row = Mapping[str, Any]


def check_agreement(
    backend: Backend, texts: Sequence[str], table: Sequence[Row], asker: Asker, sent: Row
) -> None:
    """Each expression on each row as a value, and where it is a condition as one of WHERE too."""
    nodes = [value(text, SCOPE) for text in texts]
    backend.fill(table)
    for text, node, found in zip(texts, nodes, backend.values(nodes, asker, sent), strict=True):
        expected = [python_value(node, row, asker, sent) for row in table]
        for one, wanted, row in zip(found, expected, table, strict=True):
            assert same(one, wanted), f"{text}\nSQL {one!r}, Python {wanted!r}\n{row}\n{asker}"
        if node.type in (Type.BOOLEAN, Type.NULL):
            holding = [number for number, one in enumerate(expected) if one is True]
            assert backend.matching(node, asker, sent) == holding, text


def parts_of(text: str) -> set[str]:
    """The names of the operators and functions in an expression."""
    found = set()
    for node in walk(parse(text)):
        if isinstance(node, Call):
            found.add(node.name)
        elif isinstance(node, Arithmetic | Comparison | Junction):
            found.add(node.operator)
        elif isinstance(node, Membership | IsNull):
            found.add(f"{type(node).__name__} {node.negated}")
        elif isinstance(node, Not):
            found.add("not")
    return found


OPERATORS = {*functions.ARITHMETIC, "=", "!=", "<", "<=", ">", ">=", "~", "!~", "and", "or", "not"}
OPERATORS |= {f"{kind} {negated}" for kind in ("Membership", "IsNull") for negated in (True, False)}
EVERYTHING = OPERATORS | {*functions.PLAIN, *functions.SPECIAL, *functions.CALLERS}


def trial(backend: Backend, seed: int) -> set[str]:
    """Some expressions on some rows, for somebody; returns what the expressions are made of."""
    dice = Random(seed)
    texts = [generator.expression(dice) for _ in range(6)]
    table = [generator.row(dice) for _ in range(6)]
    check_agreement(backend, texts, table, generator.asker(dice), generator.row(dice))
    return set().union(*map(parts_of, texts))


def test_sql_and_python_agree(backend: Backend) -> None:
    seen: set[str] = set()
    for seed in range(60):
        seen |= trial(backend, seed)
    assert seen == EVERYTHING


@pytest.mark.slow
def test_sql_and_python_agree_on_thousands_more(backend: Backend) -> None:
    first = secrets.randbelow(2**32)
    for seed in range(first, first + 2000):
        try:
            trial(backend, seed)
        except Exception as error:
            raise AssertionError(f"with the seed {seed}") from error
