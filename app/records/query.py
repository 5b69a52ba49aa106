"""From a list's query parameters to conditions and an order (spec 4.2, contract section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.collections.definition import Definition
from app.collections.fields import Field, Refused
from app.errors import InvalidValues, problem

DEFAULT_SORT = "-created_at"
MOST_SORT_KEYS = 8
MOST_VALUES = 100
# Parameters to come: until then nobody shall mean by them a field of that name.
LATER = {"filter", "cursor", "cursor_before", "expand"}
PAGING = {"skip", "limit", "page", "page_size", "include_total", "include_count", "sort", "fields"}


@dataclass(frozen=True)
class Query:
    """What a list asks for."""

    where: Sequence[Any]
    order_by: Sequence[Any]
    names: Sequence[str] | None


def parse(
    definition: Definition, readable: Mapping[str, Field], parameters: Mapping[str, Sequence[str]]
) -> Query:
    """Read the parameters of a list. Raises InvalidValues with every problem."""
    found: list[dict[str, Any]] = []
    where = _field_values(definition, readable, parameters, found)
    order_by = _sort(definition, readable, _one(parameters, "sort"), found)
    names = names_of(readable, _one(parameters, "fields"), found)
    if found:
        raise InvalidValues(found)
    return Query(where, order_by, names)


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
    definition: Definition,
    readable: Mapping[str, Field],
    parameters: Mapping[str, Sequence[str]],
    found: list[dict[str, Any]],
) -> list[Any]:
    conditions = []
    for name, texts in parameters.items():
        if name in PAGING:
            continue
        field = readable.get(name) if name not in LATER else None
        if field is None:
            found.append(_unknown(name))
        elif not field.filterable:
            found.append(problem(name, "filter_invalid", f"A {field.type} cannot be compared."))
        elif len(texts) > MOST_VALUES:
            found.append(problem(name, "filter_invalid", f"At most {MOST_VALUES} values."))
        else:
            values = [value for text in texts if (value := _value(field, text, found)) is not None]
            column = definition.table.c[name]
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


def _sort(
    definition: Definition,
    readable: Mapping[str, Field],
    text: str | None,
    found: list[dict[str, Any]],
) -> list[Any]:
    order_by: list[Any] = []
    seen: set[str] = set()
    # A "+" that was not escaped arrives as a space.
    keys = [key for key in (text or "").split(",") if key.strip()] or [DEFAULT_SORT]
    if len(keys) > MOST_SORT_KEYS:
        found.append(problem("sort", "invalid_option", f"At most {MOST_SORT_KEYS} sort keys."))
    for key in keys[:MOST_SORT_KEYS]:
        sign, name = re.fullmatch(r"\s*([+-]?)(.*?)\s*", key, re.DOTALL).groups()  # type: ignore[union-attr]
        field = readable.get(name)
        if field is None:
            found.append(_unknown(name, "sort"))
        elif not field.filterable:
            found.append(problem("sort", "invalid_option", f"A {field.type} cannot be sorted by."))
        elif name not in seen:
            seen.add(name)
            order_by.append(_ordered(definition, name, descending=sign == "-"))
    if "id" not in seen:
        order_by.append(definition.table.c.id.asc())
    return order_by


def _ordered(definition: Definition, name: str, *, descending: bool) -> Any:
    column = definition.table.c[name]
    ordered = column.desc() if descending else column.asc()
    # Without NULLS LAST an index in the usual order serves; where no null can be, it says nothing.
    return ordered.nulls_last() if column.nullable else ordered
