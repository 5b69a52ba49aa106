"""From a list's query parameters to conditions and an order (spec 4.2, contract section 5)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import rules
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import Field, Refused
from app.errors import InvalidValues, problem
from app.rules.sql import CodePoints
from app.stamps import Stamp

DEFAULT_SORT = "-created_at"
MOST_SORT_KEYS = 8
MOST_VALUES = 100
MASKED = "You see this field masked, so it can be neither filtered nor sorted by."
# Parameters to come: until then nobody shall mean by them a field of that name.
LATER = {"cursor", "cursor_before", "expand"}
PAGING = {"skip", "limit", "page", "page_size", "include_total", "include_count", "sort", "fields"}
OWN = PAGING | {"filter"}


@dataclass(frozen=True)
class Query:
    """What a list asks for."""

    where: Sequence[Any]
    order_by: Sequence[Any]
    names: Sequence[str] | None
    bound: Mapping[str, Any]
    """What the conditions are to be run with."""
    stamps: Collection[Stamp]
    """What must be unchanged for the conditions to be still allowed."""


def parse(access: Access, parameters: Mapping[str, Sequence[str]]) -> Query:
    """Read the parameters of a list. Raises InvalidValues with every problem."""
    found: list[dict[str, Any]] = []
    where = _field_values(access, parameters, found)
    order_by = _sort(access, _one(parameters, "sort"), found)
    names = names_of(access.readable, _one(parameters, "fields"), found)
    node = _filter(access, _one(parameters, "filter"), found)
    if found:
        raise InvalidValues(found)
    if node is None:
        return Query(where, order_by, names, {}, ())
    compiled = accesses.filter_condition(access, node)
    where.append(compiled.expression)
    bound = compiled.parameters(access.asker)
    return Query(where, order_by, names, bound, accesses.led_to(access.definition, node))


def _filter(access: Access, text: str | None, found: list[dict[str, Any]]) -> rules.Node | None:
    if text is None or not text.strip():
        return None
    try:
        return rules.condition(text, accesses.filter_scope(access))
    except rules.RuleError as error:
        found.append(problem("filter", "filter_invalid", str(error), position=error.position))
        return None


def names_of(
    readable: Mapping[str, Field], text: str | None, found: list[dict[str, Any]]
) -> Sequence[str] | None:
    """The fields an answer is limited to; `id` always stays. None means all."""
    if text is None:
        return None
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    found += [_unknown(name, "fields") for name in wanted if name not in readable]
    return [name for name in readable if name == "id" or name in wanted]


def _one(parameters: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = parameters.get(name)
    return values[-1] if values else None


def _unknown(name: str, where: str | None = None) -> dict[str, Any]:
    # A field that the caller may not see is told of in the same words as one that is not there.
    return problem(where or name[:80], "unknown_field", f"There is no field {name[:80]}.")


def _field_values(
    access: Access, parameters: Mapping[str, Sequence[str]], found: list[dict[str, Any]]
) -> list[Any]:
    conditions = []
    for name, texts in parameters.items():
        if name in OWN:
            continue
        field = access.readable.get(name) if name not in LATER else None
        if field is None:
            found.append(_unknown(name))
        elif name in access.masked:
            found.append(problem(name, "filter_invalid", MASKED))
        elif not field.filterable:
            found.append(problem(name, "filter_invalid", f"A {field.type} cannot be compared."))
        elif len(texts) > MOST_VALUES:
            found.append(problem(name, "filter_invalid", f"At most {MOST_VALUES} values."))
        else:
            values = [value for text in texts if (value := _value(field, text, found)) is not None]
            column = access.definition.expressions[name]
            conditions.append(column == values[0] if len(values) == 1 else column.in_(values))
    return conditions


def _value(field: Field, text: str, found: list[dict[str, Any]]) -> Any:
    try:
        return field.from_text(text)
    except Refused as error:
        if error.code not in ("too_short", "too_long", "pattern_mismatch", "invalid_option"):
            found.append(problem(field.name, error.code, str(error)))
            return None
        return text


def _sort(access: Access, text: str | None, found: list[dict[str, Any]]) -> list[Any]:
    order_by: list[Any] = []
    seen: set[str] = set()
    # A "+" that was not escaped arrives as a space.
    keys = [key for key in (text or "").split(",") if key.strip()] or [DEFAULT_SORT]
    if len(keys) > MOST_SORT_KEYS:
        found.append(problem("sort", "invalid_option", f"At most {MOST_SORT_KEYS} sort keys."))
    for key in keys[:MOST_SORT_KEYS]:
        sign, name = re.fullmatch(r"\s*([+-]?)(.*?)\s*", key, re.DOTALL).groups()  # type: ignore[union-attr]
        field = access.readable.get(name)
        if field is None:
            found.append(_unknown(name, "sort"))
        elif name in access.masked:
            found.append(problem("sort", "invalid_option", MASKED))
        elif not field.filterable:
            found.append(problem("sort", "invalid_option", f"A {field.type} cannot be sorted by."))
        elif name not in seen:
            seen.add(name)
            order_by.append(_ordered(access.definition, name, descending=sign == "-"))
    if "id" not in seen:
        order_by.append(access.definition.table.c.id.asc())
    return order_by


def _ordered(definition: Definition, name: str, *, descending: bool) -> Any:
    column = definition.expressions[name]
    if name in definition.computed and isinstance(column.type, sa.Text):
        column = CodePoints(column)
    ordered = column.desc() if descending else column.asc()
    # Without NULLS LAST an index in the usual order serves; where no null can be, it says nothing.
    return ordered.nulls_last() if getattr(column, "nullable", True) else ordered
