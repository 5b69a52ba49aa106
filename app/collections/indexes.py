"""Indexes of collections: validation, and which index serves an order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from app.collections.fields import LONGEST_INDEXED, SYSTEM_FIELDS, TYPES, Field, kind_of
from app.errors import problem
from app.types import JSONMapping, JSONObject

MAX_INDEXES = 20
MAX_FIELDS = 8
# The account leads every index, and the id ends those that are not unique.
SYSTEM_NAMES = SYSTEM_FIELDS.keys() - {"account_id", "id"}

Spec = JSONMapping


class IndexField(NamedTuple):
    name: str
    descending: bool

    @property
    def text(self) -> str:
        """The field as definitions have it: with a minus sign if descending."""
        return f"-{self.name}" if self.descending else self.name


@dataclass(frozen=True)
class Index:
    """An index within each account. A unique one accepts any number of records with a null."""

    fields: tuple[IndexField, ...]
    unique: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def parse(spec: Spec) -> Index:
    """The index of an entry of `indexes`."""
    fields = (IndexField(text.removeprefix("-"), text.startswith("-")) for text in spec["fields"])
    return Index(tuple(fields), bool(spec.get("unique")))


def stored(spec: Spec) -> JSONObject:
    """An entry of `indexes` with every property, as stored and returned."""
    return {"fields": list(spec["fields"]), "unique": bool(spec.get("unique"))}


def of_collection(schema: Sequence[Spec], specs: Sequence[Spec]) -> list[Index]:
    """The indexes that properties of fields declare, and those of `indexes`."""
    return [*_of_fields(schema), *map(parse, specs)]


def max_bytes(schema: Sequence[Spec], specs: Sequence[Spec]) -> dict[str, int]:
    """The most bytes of texts that are indexed, by field: those of one index share an entry."""
    texts = {spec["name"] for spec in schema if TYPES.get(spec["type"], Field).fills_indexes}
    result: dict[str, int] = {}
    for index in of_collection(schema, specs):
        sharing = texts.intersection(index.names)
        for name in sharing:
            result[name] = min(result.get(name, LONGEST_INDEXED), LONGEST_INDEXED // len(sharing))
    return result


def problems(schema: Sequence[Spec], specs: Sequence[Spec]) -> Iterator[JSONObject]:
    """The problems of `indexes` of a collection with this schema."""
    types = {spec["name"]: spec["type"] for spec in schema}
    single = {s["name"] for s in schema if (kind_of(s) or Field).may_be_unique}
    # Every table has an index of created_at, which is read in both directions.
    built_in = [Index((IndexField("created_at", descending),)) for descending in (True, False)]
    seen = {*_of_fields(schema), *built_in}
    if len(specs) > MAX_INDEXES:
        yield problem("indexes", "invalid_option", f"At most {MAX_INDEXES} indexes.")
    for place, spec in enumerate(specs[:MAX_INDEXES]):
        index, path = parse(spec), f"indexes[{place}]"
        for code, message in _field_problems(index, types, single):
            yield problem(path, code, message)
        if index in seen:
            message = "This index exists already: another entry, a field's property or built in."
            yield problem(path, "invalid_option", message)
        seen.add(index)


def _of_fields(schema: Sequence[Spec]) -> Iterator[Index]:
    for spec in schema:
        is_indexed, kind = (spec.get("options") or {}).get("index"), kind_of(spec) or Field
        is_unique = bool(spec.get("unique")) or kind.is_unique
        if is_unique or is_indexed or kind.is_indexed:
            yield Index((IndexField(spec["name"], False),), is_unique)


def _field_problems(
    index: Index, types: Mapping[str, str], single: Collection[str]
) -> Iterator[tuple[str, str]]:
    if not 1 <= len(index.fields) <= MAX_FIELDS:
        yield "invalid_option", f"An index has 1 to {MAX_FIELDS} fields."
    for name in dict.fromkeys(index.names):
        if name in ("account_id", "id"):
            yield "invalid_option", f"Leave out {name}, which indexes have anyway."
        elif name not in types and name not in SYSTEM_NAMES:
            yield "unknown_field", f"There is no field {name[:80]}."
        elif types.get(name) in TYPES and name not in single:
            yield "invalid_option", f"{name} cannot be indexed, as its type is {types[name]}."
        if index.names.count(name) > 1:
            yield "invalid_option", f"{name[:80]} occurs more than once."


def serving(
    indexes: Sequence[Index], order: Sequence[IndexField], fixed: Collection[str]
) -> tuple[int, int]:
    """The number of fields of an order that the best index serves, read forward and backward.

    Records that have one value in the `fixed` fields are ordered by the other fields.
    """
    ordered = [field for field in order if field.name not in fixed]
    reverse = [IndexField(field.name, not field.descending) for field in ordered]
    remaining = [[field for field in index.fields if field.name not in fixed] for index in indexes]
    forward = max((_common(fields, ordered) for fields in remaining), default=0)
    backward = max((_common(fields, reverse) for fields in remaining), default=0)
    return forward, backward


def _common(left: Sequence[IndexField], right: Sequence[IndexField]) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
