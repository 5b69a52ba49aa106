"""The filter of a record list: conditions of field, operator and value, and an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flask import request

from app import clock, rules
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.fields import ComputedField, Field, InvalidValue, MultiSelectField
from app.console.shell.excerpts import Excerpt, excerpt
from app.console.shell.forms import Form
from app.errors import InvalidValues, problem
from app.types import JSONObject

MIN_ROWS, MAX_ROWS = 2, 8
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
NULL_OPERATORS = {"empty": "IS NULL", "filled": "IS NOT NULL"}
PATTERNS = {"contains": "%{}%", "starts": "{}%"}


@dataclass
class FilterForm(Form):
    """The submitted conditions and expression, and the filter that they form."""

    rows: int = MIN_ROWS
    built: str = ""
    shown: Excerpt | None = None

    @property
    def query_args(self) -> dict[str, str]:
        """The query arguments of this filter."""
        return {name: value for name, value in self.values.items() if value}

    def build(self, access: Access) -> str:
        """The filter expression. Raises InvalidValues."""
        problems: list[JSONObject] = []
        scope = accesses.filter_scope(access)
        parts = [self._checked(n, access, scope, problems) for n in range(self.rows)]
        raw = self["filter"]
        if raw:
            try:
                rules.condition(raw, scope)
            except rules.RuleError as error:
                problems.append(problem("filter", "filter_invalid", str(error)))
                self.shown = excerpt(raw, error.position)
            parts.append(f"({raw})" if any(parts) else raw)
        if problems:
            raise InvalidValues(problems)
        self.built = " && ".join(part for part in parts if part)
        return self.built

    def _checked(
        self, n: int, access: Access, scope: rules.Scope, problems: list[JSONObject]
    ) -> str:
        name, operator, text = (self[f"{key}_{n}"] for key in ("field", "op", "value"))
        if not name:
            if text:
                problems.append(problem(f"field_{n}", "required", "Choose a field."))
            return ""
        field = offered_fields(access).get(name)
        if field is None or operator not in OPERATORS:
            problems.append(problem(f"field_{n}", "unknown_field", "Choose one of the options."))
            return ""
        try:
            part = _condition(name, field, operator, text)
            rules.condition(part, scope)
        except (InvalidValue, rules.RuleError) as error:
            problems.append(problem(f"value_{n}", "filter_invalid", str(error)))
            return ""
        return part


def filterable_fields(access: Access) -> Mapping[str, Field]:
    """The fields that the caller may compare and sort by."""
    return {name: field for name, field in access.comparable.items() if field.filterable}


def offered_fields(access: Access) -> Mapping[str, Field]:
    """The fields that a condition may name."""
    return {
        name: field
        for name, field in access.comparable.items()
        if field.filterable or isinstance(field, MultiSelectField)
    }


def is_indexed(form: FilterForm, access: Access) -> bool:
    """Whether an index answers the filter, or there is none."""
    rows = [(form[f"field_{n}"], form[f"op_{n}"]) for n in range(form.rows)]
    by_index = any(
        name == "id" or name in access.definition.leading
        for name, operator in rows
        if operator == "="
    )
    return by_index or not form.built


def from_request() -> FilterForm:
    """The filter in the query string."""
    values = {"filter": _text("filter")}
    used = 0
    for n in range(MAX_ROWS):
        values |= {f"{key}_{n}": _text(f"{key}_{n}") for key in ("field", "op", "value")}
        if values[f"field_{n}"] or values[f"value_{n}"]:
            used = n + 1
    rows = min(max(used + 1, MIN_ROWS), MAX_ROWS)
    for n in range(MAX_ROWS):
        if not values[f"field_{n}"] and not values[f"value_{n}"]:
            values[f"op_{n}"] = ""
        elif not values[f"op_{n}"]:
            values[f"op_{n}"] = "="
    return FilterForm(values, rows=rows)


def _text(name: str) -> str:
    return request.args.get(name, "").replace("\0", "").replace("\r\n", "\n").strip()


def _condition(name: str, field: Field, operator: str, text: str) -> str:
    if operator in NULL_OPERATORS:
        return f"{name} {NULL_OPERATORS[operator]}"
    if operator == "contains" and isinstance(field, MultiSelectField):
        return f"@contains({name}, {quote(text)})"
    if operator in PATTERNS:
        return f"{name} ~ {quote(PATTERNS[operator].format(escape_like(text)))}"
    return f"{name} {operator} {literal(field, text)}"


def literal(field: Field, text: str) -> str:
    """A value of a field as a literal of the rule language. Raises Refused."""
    field = field.like if isinstance(field, ComputedField) else field
    if field.rule_type in (rules.Type.TEXT, rules.Type.LIST):
        return quote(text)
    value = field.from_text(text)
    if isinstance(value, bool):
        return str(value).lower()
    if field.rule_type is rules.Type.DATETIME:
        return quote(clock.iso(value))
    return quote(value.isoformat()) if field.rule_type is rules.Type.DATE else repr(value)


def quote(text: str) -> str:
    """A string literal of the rule language."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escape_like(text: str) -> str:
    """A text with the wildcards of a pattern escaped."""
    return text.rstrip("\\").replace("%", "\\%")
