"""Texts that would be SQL, were they pasted into it."""

from __future__ import annotations

import pytest

from app.rules import RuleError, Subject, condition, value
from tests.rules.backends import SCOPE, Backend, python_value
from tests.rules.generator import quoted

MARK = "Zq7"
QUOTES = ["'", "''", "' OR 1=1 --", "\\' OR 1=1 --", '"; DROP TABLE rule_rows; --', "$body$"]
PATTERNS = ["%", "_", "%%", "\\%", "\\", "\\\\", "E'\\x41'"]
PLACEHOLDERS = ["%s", "%(x)s", ":x", "::text", ":_caller_id", "{0}", "$1", "?"]
PUNCTUATION = ["/*", "*/", "!"]
CHARACTERS = ["\u02bc", "\uff07", "\u2028", "\x1a", "\x7f", "\ufeff"]
TEXTS = QUOTES + PATTERNS + PLACEHOLDERS + PUNCTUATION + CHARACTERS
WITH_TEXT = ["t = {}", "t ~ {}", "t ~ concat({}, '')", "t IN [{}, {}]", "concat({}, '') = t"]
WITH_TEXT += ["coalesce(t, {}) = {}", "if(t = {}, true, false)", "nullif(t, {}) IS NULL", "t >= {}"]


@pytest.mark.parametrize("hostile", TEXTS)
def test_rule_texts_are_bound_sql_parameters(hostile: str, backend: Backend) -> None:
    hostile += MARK
    rows = [{"t": hostile}, {"t": "other"}, {}]
    backend.fill(rows)
    for form in WITH_TEXT:
        node = condition(form.replace("{}", quoted(hostile)), SCOPE)
        expected = [n for n, row in enumerate(rows) if python_value(node, row, Subject()) is True]
        with backend.statements() as sent:
            assert backend.matching(node) == expected, form
        assert sent
        assert not [statement for statement in sent if MARK in statement]


@pytest.mark.parametrize("hostile", TEXTS)
def test_rule_caller_values_are_bound_sql_parameters(hostile: str, backend: Backend) -> None:
    hostile += MARK
    backend.fill([{"t": hostile}, {"t": "other"}])
    subject = Subject(hostile, hostile, hostile, hostile, frozenset({hostile}))
    node = condition("t = @request.auth.id && t = @request.data.t && t ~ concat(t)", SCOPE)
    with backend.statements() as sent:
        found = backend.matching(node, subject, {"t": hostile})
        is_another = any(escape in hostile for escape in ("\\%", "\\\\"))
        assert found == ([] if is_another else [0])  # its text as a pattern
    assert not [statement for statement in sent if MARK in statement]


@pytest.mark.parametrize("name", ['t"', "t'", "`t`", "t;", "t--", "[t]", "t::text", "rule_rows.t"])
def test_rule_names_outside_schema_are_refused(name: str) -> None:
    with pytest.raises(RuleError):
        value(name, SCOPE)
