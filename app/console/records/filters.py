"""The filter of a record list: conditions of field, operator and value, and an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from flask import request

from app import rules
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import people
from app.collections.access import Access
from app.collections.fields import Field, InvalidValue
from app.collections.people import People
from app.console.records import display, references
from app.console.shell.checks import Excerpt, excerpt
from app.console.shell.forms import Form
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.app import UuidPath
from app.web.languages import gettext, lazy_gettext

MIN_ROWS, MAX_ROWS = 1, 8
OPERATORS = {
    "=": lazy_gettext("is"),
    "!=": lazy_gettext("is not"),
    "contains": lazy_gettext("contains"),
    "starts": lazy_gettext("starts with"),
    "<": lazy_gettext("is less than"),
    "<=": lazy_gettext("is at most"),
    ">": lazy_gettext("is more than"),
    ">=": lazy_gettext("is at least"),
    "empty": lazy_gettext("is empty"),
    "filled": lazy_gettext("is not empty"),
}
NULL_OPERATORS = {"empty": "IS NULL", "filled": "IS NOT NULL"}
PATTERNS = {"contains": "%{}%", "starts": "{}%"}
NAME_PATTERNS = {"=": "{}", "!=": "{}", **PATTERNS}
TYPED_TEXTS = ("text", "plain")  # inputs that compare with an empty text, too
# Operators of a condition on all texts of a record; the first is the default.
OF_ANY = ("contains", "starts", "=")


@dataclass(frozen=True)
class Control:
    """The inputs of a condition on a field."""

    input: str
    operators: Mapping[str, str]
    choices: Mapping[str, str]
    """The labels by value; empty if any value may be entered."""


@dataclass
class FilterForm(Form):
    """The submitted conditions and expression, and the filter that they form."""

    rows: int = MIN_ROWS
    built: str = ""
    shown: Excerpt | None = None

    @property
    def query_args(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if value}

    @property
    def active(self) -> int:
        """The number of conditions in use, the expression among them."""
        used = (self[f"field_{n}"] or self[f"value_{n}"] for n in range(self.rows))
        return sum(map(bool, used)) + bool(self["filter"]) + bool(self.values["search"])

    def parameters(self, access: Access) -> dict[str, list[str]]:
        """The parameters of a list. Raises InvalidValues."""
        text = self.values["search"]
        return {"filter": [self.build(access)], **({"search": [text]} if text else {})}

    def build(self, access: Access) -> str:
        """The filter expression. Raises InvalidValues."""
        problems: list[JSONObject] = []
        scope = accesses.filter_scope(access)
        parts = [self._checked(n, access, scope, problems) for n in range(self.rows)]
        raw = self["filter"]
        if raw:
            wrong = expression_problems(raw, access)
            problems += wrong
            self.shown = excerpt(raw, wrong[0]["position"]) if wrong else None
            parts.append(f"({raw})" if any(parts) else raw)
        if problems:
            raise InvalidValues(problems)
        self.built = " && ".join(part for part in parts if part)
        return self.built

    def _checked(
        self, n: int, access: Access, scope: rules.Scope, problems: list[JSONObject]
    ) -> str:
        name, operator, text = (self[f"{key}_{n}"] for key in ("field", "op", "value"))
        if not name and not text:
            return ""
        names = searched_fields(access)
        if not name and not (names and operator in OF_ANY):
            problems.append(problem(f"field_{n}", "required", gettext("Choose a field.")))
            return ""
        if not name:
            pattern = NAME_PATTERNS[operator].format(references.escape_like(text))
            part = f"({references.matches(pattern, names)})"
            return self._accepted(n, part, scope, problems)
        field = offered_fields(access).get(name)
        if field is None or operator not in OPERATORS:
            message = gettext("Choose one of the options.")
            problems.append(problem(f"field_{n}", "unknown_field", message))
            return ""
        if operator in ("=", "contains") and operator not in control(field).operators:
            operator = self.values[f"op_{n}"] = next(iter(control(field).operators))
        try:
            part = _condition(access, name, operator, text)
        except InvalidValue as error:
            problems.append(problem(f"value_{n}", "filter_invalid", str(error)))
            return ""
        return self._accepted(n, part, scope, problems)

    def _accepted(self, n: int, part: str, scope: rules.Scope, problems: list[JSONObject]) -> str:
        try:
            rules.condition(part, scope)
        except rules.RuleError as error:
            problems.append(problem(f"value_{n}", "filter_invalid", str(error)))
            return ""
        return part


def expression_problems(text: str, access: Access) -> list[JSONObject]:
    try:
        accesses.read_filter(access, text)
    except rules.RuleError as error:
        return [
            problem("filter", error.code or "filter_invalid", str(error), position=error.position)
        ]
    return []


@lru_cache(display.MAX_CACHED)
def offered_fields(access: Access) -> Mapping[str, Field]:
    """The fields that a condition may name."""
    return {name: field for name, field in access.comparable.items() if field.face.comparisons}


@lru_cache(display.MAX_CACHED)
def searched_fields(access: Access) -> list[str]:
    """The text fields that a condition without a field searches."""
    offered = offered_fields(access)
    return [name for name in display.label_fields(access) if name in offered]


def has_words(access: Access) -> bool:
    """Whether the list can be searched for words."""
    return any(name in access.comparable for name in access.definition.searched)


def control(field: Field | None) -> Control:
    """The control for a condition on a field; for any value if none is chosen."""
    if not field:  # perhaps an undefined one of a template
        # Any may follow: without scripts, the field is chosen afterwards.
        return Control("text", {name: OPERATORS[name] for name in (*OF_ANY, *OPERATORS)}, {})
    operators = {name: OPERATORS[name] for name in field.face.comparisons}
    return Control(field.face.compared_in, operators, field.choices)


def is_indexed(form: FilterForm, access: Access) -> bool:
    """Whether an index answers the filter, or there is none."""
    rows = [(form[f"field_{n}"], form[f"op_{n}"], form[f"value_{n}"]) for n in range(form.rows)]
    by_index = any(
        name == "id" or name in access.definition.leading
        for name, operator, text in rows
        if operator == "=" and (access.definition.followed(name) is None or UuidPath.accepts(text))
    )
    return by_index or not form.built or bool(form.values["search"])


def labels(form: FilterForm, access: Access, by: Principal) -> dict[str, str]:
    """The labels of the records whose ids are the values of conditions on references."""
    found = {}
    for n in range(form.rows):
        id, target = form[f"value_{n}"], access.definition.followed(form[f"field_{n}"])
        if target is not None and UuidPath.accepts(id):
            found[f"value_{n}"] = references.labels(target, [id], by).get(id, "")
    return found


def from_request() -> FilterForm:
    """The filter in the query string."""
    return from_args(request.args)


def from_args(args: Mapping[str, str]) -> FilterForm:
    """The filter in the arguments of a query string."""
    values = {name: _text(args, name) for name in ("filter", "search")}
    used = 0
    for n in range(MAX_ROWS):
        values |= {f"{key}_{n}": _text(args, f"{key}_{n}") for key in ("field", "op", "value")}
        if values[f"field_{n}"] or values[f"value_{n}"]:
            used = n + 1
    rows = min(max(used + 1, MIN_ROWS), MAX_ROWS)
    for n in range(MAX_ROWS):
        if not values[f"field_{n}"] and not values[f"value_{n}"]:
            values[f"op_{n}"] = ""
        elif not values[f"op_{n}"]:
            values[f"op_{n}"] = "=" if values[f"field_{n}"] else OF_ANY[0]
    return FilterForm(values, rows=rows)


def _text(args: Mapping[str, str], name: str) -> str:
    return args.get(name, "").replace("\0", "").replace("\r\n", "\n").strip()


def _condition(access: Access, name: str, operator: str, text: str) -> str:
    field = offered_fields(access)[name]
    if operator in NULL_OPERATORS:
        return f"{name} {NULL_OPERATORS[operator]}"
    if not text and field.face.compared_in not in TYPED_TEXTS:
        raise InvalidValue("required", gettext("Enter a value."))
    if access.definition.followed(name) is not None and not UuidPath.accepts(text):
        return _reference_condition(access, name, operator, text)
    if operator == "contains" and field.rule_type is rules.Type.LIST:
        return f"@contains({name}, {references.quote(text)})"
    if operator in PATTERNS:
        return references.matches(PATTERNS[operator].format(references.escape_like(text)), [name])
    return f"{name} {operator} {references.literal(field, text)}"


def _reference_condition(access: Access, name: str, operator: str, text: str) -> str:
    target = access.definition.followed(name)
    if isinstance(target, People):
        fields = [one for one in people.shown_fields(access.caller) if one == "name"]
    else:
        view = accesses.if_open(access.caller, target, "view") if target else None
        fields = display.label_fields(view)[: references.MAX_SEARCHED_FIELDS] if view else []
    if not fields or operator not in NAME_PATTERNS:
        raise InvalidValue(
            "filter_invalid", gettext("Its records cannot be found by name: enter an id.")
        )
    pattern = NAME_PATTERNS[operator].format(references.escape_like(text))
    found = references.matches(pattern, [f"{name}.{field}" for field in fields])
    return f"!({found})" if operator == "!=" else f"({found})"
