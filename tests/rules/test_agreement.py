"""Both back ends give the same value for every expression, every row and whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.rules import Subject, Type, value
from tests.conftest import WHOLE
from tests.rules import generator
from tests.rules.backends import SCOPE, Backend, python_value, same
from tests.rules.parts import EVERYTHING, parts_of

Row = Mapping[str, Any]


def check_agreement(
    backend: Backend, texts: Sequence[str], table: Sequence[Row], subject: Subject, sent: Row
) -> None:
    """Each expression on each row as a value, and where it is a condition as one of WHERE too."""
    nodes = [value(text, SCOPE) for text in texts]
    backend.fill(table)
    for text, node, found in zip(texts, nodes, backend.values(nodes, subject, sent), strict=True):
        expected = [python_value(node, row, subject, sent) for row in table]
        for one, wanted, row in zip(found, expected, table, strict=True):
            assert same(one, wanted), f"{text}\nSQL {one!r}, Python {wanted!r}\n{row}\n{subject}"
        if node.type in (Type.BOOLEAN, Type.NULL):
            holding = [number for number, one in enumerate(expected) if one is True]
            assert backend.matching(node, subject, sent) == holding, text


def each(make: Callable[[Random], Any]) -> st.SearchStrategy[Any]:
    """What a generator makes of a die of its own, which costs a tenth of one that can shrink."""
    return st.randoms(use_true_random=True).map(make)


# What shrinks is how many expressions and rows it takes for the back ends to differ.
BATCHES = st.tuples(
    st.lists(each(generator.expression), min_size=2, max_size=12),
    st.lists(each(generator.deep_expression), max_size=1),
    st.lists(each(generator.row), min_size=3, max_size=12),
    each(generator.subject),
    each(generator.row),
)
LAW = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@cache
def with_everything() -> list[str]:
    """Expressions that between them use all there is in the language."""
    seen: set[str] = set()
    found = []
    for seed in range(5000):
        text = generator.expression(Random(seed))
        if more := parts_of(text) - seen:
            found.append(text)
            seen |= more
        if seen == EVERYTHING:
            return found
    raise AssertionError(EVERYTHING - seen)


def test_rule_sql_and_python_agree_on_every_construct(backend: Backend) -> None:
    dice = Random(0)
    table = [generator.row(dice) for _ in range(12)]
    check_agreement(backend, with_everything(), table, generator.subject(dice), generator.row(dice))


@WHOLE
@pytest.mark.parametrize("items", ["", "1", "1, m", "null"])
@pytest.mark.parametrize("operator", ["IN", "NOT IN"])
def test_rule_list_operator_works_at_any_depth(
    backend: Backend, operator: str, items: str, whole: bool
) -> None:
    dice, texts = Random(0), []
    for above in range(12):
        for below in range(8, 12) if whole else (8 + above % 4,):
            number = f"{'abs(' * below}n{')' * below}"
            texts.append(f"{'if(' * above}{number} {operator} ({items}){', b, c)' * above}")
    table = [generator.row(dice) for _ in range(6)]
    check_agreement(backend, texts, table, generator.subject(dice), generator.row(dice))


@pytest.mark.long
@settings(max_examples=25, derandomize=True, **LAW)
@given(BATCHES)
def test_rule_sql_and_python_agree_on_generated_expressions(backend: Backend, batch: Any) -> None:
    texts, deep, *others = batch
    check_agreement(backend, [*texts, *deep], *others)


@pytest.mark.slow
@settings(max_examples=2000, print_blob=True, **LAW)
@given(BATCHES)
def test_rule_sql_and_python_agree_on_thousands_of_expressions(
    backend: Backend, batch: Any
) -> None:
    texts, deep, *others = batch
    check_agreement(backend, [*texts, *deep], *others)
