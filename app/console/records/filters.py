"""The filter of a list of records: rows of field, operator and value, and an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import request

from app import clock, rules
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.fields import ComputedField, Field, InvalidValue
from app.console.shell.excerpts import Excerpt, excerpt
from app.console.shell.forms import Form
from app.errors import InvalidValues, problem

FEWEST_ROWS, MOST_ROWS = 2, 8
OPERATORS = {
    "=": "is",
    "!=": "is not",
    "contains": "contains",
    "starts": "starts with",
    "<": "is less than",
    "<=": "is at most",
    ">": "is more than",
    ">=": "is at least",
    "empty": "is empty",
    "filled": "is not empty",
}
WITHOUT_VALUE = {"empty": "IS NULL", "filled": "IS NOT NULL"}
PATTERNS = {"contains": "%{}%", "starts": "{}%"}


@dataclass
class FilterForm(Form):
    """The rows as they were sent, the expression typed, and the one that both come to."""

    rows: int = FEWEST_ROWS
    built: str = ""
    shown: Excerpt | None = None

    @property
    def kept(self) -> dict[str, str]:
        """What addresses of the same list under the same filter carry."""
        return {name: value for name, value in self.values.items() if value}

    def build(self, access: Access) -> str:
        """The expression that the form comes to. Raises InvalidValues."""
        found: list[dict[str, Any]] = []
        scope = accesses.filter_scope(access)
        parts = [self._checked(n, access, scope, found) for n in range(self.rows)]
        raw = self["filter"]
        if raw:
            try:
                rules.condition(raw, scope)
            except rules.RuleError as error:
                found.append(problem("filter", "filter_invalid", str(error)))
                self.shown = excerpt(raw, error.position)
            parts.append(f"({raw})" if any(parts) else raw)
        if found:
            raise InvalidValues(found)
        self.built = " && ".join(part for part in parts if part)
        return self.built

    def _checked(
        self, n: int, access: Access, scope: rules.Scope, found: list[dict[str, Any]]
    ) -> str:
        name, operator, text = (self[f"{key}_{n}"] for key in ("field", "op", "value"))
        if not name:
            if text:
                found.append(problem(f"field_{n}", "required", "Choose a field."))
            return ""
        field = offered(access).get(name)
        if field is None or operator not in OPERATORS:
            found.append(problem(f"field_{n}", "unknown_field", "Choose one of these."))
            return ""
        try:
            part = _condition(name, field, operator, text)
            rules.condition(part, scope)
        except (InvalidValue, rules.RuleError) as error:
            found.append(problem(f"value_{n}", "filter_invalid", str(error)))
            return ""
        return part


def offered(access: Access) -> Mapping[str, Field]:
    """The fields that can be filtered and sorted by."""
    return {name: one for name, one in access.comparable.items() if one.filterable}


def is_quick(form: FilterForm, access: Access) -> bool:
    """Whether an index finds what the form asks for, or nothing is asked."""
    rows = [(form[f"field_{n}"], form[f"op_{n}"]) for n in range(form.rows)]
    by_index = any(
        name == "id" or ((field := access.definition.declared.get(name)) and field.indexed)
        for name, operator in rows
        if operator == "="
    )
    return by_index or not form.built


def asked() -> FilterForm:
    """The filter that the page's address names."""
    values = {"filter": _text("filter")}
    used = 0
    for n in range(MOST_ROWS):
        values |= {f"{key}_{n}": _text(f"{key}_{n}") for key in ("field", "op", "value")}
        if values[f"field_{n}"] or values[f"value_{n}"]:
            used = n + 1
    rows = min(max(used + 1, FEWEST_ROWS), MOST_ROWS)
    for n in range(MOST_ROWS):
        if not values[f"field_{n}"] and not values[f"value_{n}"]:
            values[f"op_{n}"] = ""
        elif not values[f"op_{n}"]:
            values[f"op_{n}"] = "="
    return FilterForm(values, rows=rows)


def _text(name: str) -> str:
    return request.args.get(name, "").replace("\0", "").replace("\r\n", "\n").strip()


def _condition(name: str, field: Field, operator: str, text: str) -> str:
    if operator in WITHOUT_VALUE:
        return f"{name} {WITHOUT_VALUE[operator]}"
    if operator in PATTERNS:
        return f"{name} ~ {quoted(PATTERNS[operator].format(literally(text)))}"
    return f"{name} {operator} {literal(field, text)}"


def literal(field: Field, text: str) -> str:
    """A value of a field as an expression names it. Raises InvalidValue."""
    field = field.like if isinstance(field, ComputedField) else field
    if field.rule_type is rules.Type.TEXT:
        return quoted(text)
    value = field.from_text(text)
    if isinstance(value, bool):
        return str(value).lower()
    if field.rule_type is rules.Type.DATETIME:
        return quoted(clock.iso(value))
    return quoted(value.isoformat()) if field.rule_type is rules.Type.DATE else repr(value)


def quoted(text: str) -> str:
    """A text in quotes, as the rule language reads it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def literally(text: str) -> str:
    """A text within a pattern that stands for itself."""
    return text.rstrip("\\").replace("%", "\\%")
