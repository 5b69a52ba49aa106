"""What every operator and function means, and what is refused: `tests/cases/rules.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.rules import RuleError, Subject, Type, condition, value, values
from tests.rules import backends
from tests.rules.backends import FIELDS, SCOPE, python_value, same, typed
from tests.rules.parts import EVERYTHING, parts_of

TABLE = json.loads((Path(__file__).parent.parent / "cases" / "rules.json").read_text("utf-8"))
GROUPS = [pytest.param(group, id=group["about"]) for group in TABLE["groups"]]


def subject_of(group: Mapping[str, Any]) -> Subject:
    given = dict(group.get("subject", {}))
    sets = {name: frozenset(given.get(name, ())) for name in ("groups", "flags")}
    return Subject(**given | sets)


def record_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the types of its fields; a reference leads to one."""
    return {
        name: record_of(one) if name == "parent" else typed(FIELDS[name], one)
        for name, one in given.items()
    }


def rows_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The record as a row, and after it the one that it refers to."""
    if "parent" not in record:
        return [dict(record)]
    return [{**record, "parent": record["parent"]["t"]}, dict(record["parent"])]


def shown(found: Any) -> Any:
    if isinstance(found, Decimal):
        return values.plain(found)
    return found.isoformat() if isinstance(found, date | datetime) else found


@pytest.mark.parametrize("group", GROUPS)
def test_rule_python_values_equal_case_table(group: dict[str, Any]) -> None:
    record, subject = record_of(group.get("record", {})), subject_of(group)
    for text, expected in group["cases"]:
        found = python_value(value(text, SCOPE), record, subject, group.get("sent"))
        assert same(shown(found), expected), (text, found, expected)


@pytest.mark.parametrize("group", GROUPS)
def test_rule_sql_values_equal_case_table(group: dict[str, Any], backend: backends.Backend) -> None:
    backend.fill(rows_of(record_of(group.get("record", {}))))
    subject, sent = subject_of(group), group.get("sent")
    nodes = [value(text, SCOPE) for text, _ in group["cases"]]
    found = backend.values(nodes, subject, sent)
    for (text, expected), (first, *_) in zip(group["cases"], found, strict=True):
        assert same(shown(first), expected), (text, first, expected)


@pytest.mark.parametrize("group", GROUPS)
def test_rule_where_clause_keeps_rows_true_in_case_table(
    group: dict[str, Any], backend: backends.Backend
) -> None:
    backend.fill(rows_of(record_of(group.get("record", {}))))
    for text, expected in group["cases"]:
        node = value(text, SCOPE)
        if node.type in (Type.BOOLEAN, Type.NULL):
            kept = backend.matching(node, subject_of(group), group.get("sent"))
            assert (0 in kept) is (expected is True), text


def test_rule_case_table_covers_every_operator_and_function() -> None:
    texts = [text for group in TABLE["groups"] for text, _ in group["cases"]]
    assert set().union(*map(parts_of, texts)) == EVERYTHING


@pytest.mark.parametrize(("text", "position", "fragment"), TABLE["refused"])
def test_rule_error_has_message_and_position(text: str, position: int, fragment: str) -> None:
    with pytest.raises(RuleError) as refusal:
        condition(text, SCOPE)
    assert fragment in str(refusal.value)
    assert refusal.value.position == position
