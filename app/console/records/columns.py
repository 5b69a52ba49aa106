"""The columns of a record table: which ones, in which order, how wide, and how values look."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flask import request, url_for

from app.collections.access import Access
from app.collections.fields import ComputedField, Field
from app.console.records import display, references
from app.console.records.record_form import MAX_SINGLE_LINE
from app.console.shell.lists import Listing
from app.console.shell.scopes import CollectionScope
from app.types import JSONMapping

# The width of a column by type, in characters; the default columns fit into ROOM.
WIDTHS = {
    "select": 12,
    "boolean": 6,
    "number": 10,
    "date": 11,
    "datetime": 16,
    "reference": 16,
    "multi_select": 18,
    "file": 18,
    "email": 24,
    "text": 24,
    "url": 30,
}
SHORT = ("select", "boolean", "number", "date", "datetime", "reference")
ROOM, LONG_WIDTH, GAP = 150, 40, 3
MIN_PIXELS, MAX_PIXELS = 64, 1200  # of the width that a user gives a column
PIXELS_PER_CHARACTER = 8  # about
LAST = ("id", "account_id", "created_by", "updated_by")  # of the fields to choose from
Labels = dict[str, tuple[str, dict[str, str]]]


@dataclass(frozen=True)
class Column:
    """A column: its field, the kind of its values, its sort link and sort order."""

    name: str
    kind: str
    target: str | None
    sorted: str | None
    width: int
    """Pixels, in a table whose columns have widths."""


def kind(field: Field) -> str:
    """The type of a field's values: `select` for any choice, `long` for texts of many lines."""
    type_ = field.like.type if isinstance(field, ComputedField) else field.type
    if "choices" in field.options and type_ == "text":
        return "select"
    is_short = field.options.get("max_length", MAX_SINGLE_LINE + 1) <= MAX_SINGLE_LINE
    return "long" if type_ == "json" or (type_ == "text" and not is_short) else type_


def name_field(access: Access) -> str | None:
    """The field that names a record, and heads the first column."""
    return next(iter(display.label_fields(access)), None)


@lru_cache(display.MAX_CACHED)
def readable_fields(access: Access) -> list[str]:
    """The declared fields that the caller may see."""
    return [name for name in access.definition.declared if name in access.readable]


@lru_cache(display.MAX_CACHED)
def default(access: Access) -> list[str]:
    """The columns that fit beside the name: short values first, long texts last."""
    named = name_field(access)
    room = ROOM - WIDTHS["text"] - GAP - _width(access, "created_at")
    chosen = []
    for name in sorted(readable_fields(access), key=lambda name: _rank(access.readable[name])):
        width = _width(access, name)
        if name != named and width <= room:
            chosen.append(name)
            room -= width
    return [*chosen, "created_at"]


def _rank(field: Field) -> int:
    if isinstance(field, ComputedField) and kind(field) == "long":
        return 3
    return 0 if kind(field) in SHORT else 1 if kind(field) != "long" else 2


def _width(access: Access, name: str) -> int:
    return max(WIDTHS.get(kind(access.readable[name]), LONG_WIDTH), len(name)) + GAP


def requested(access: Access) -> list[str]:
    """The columns that the query string names, one of them moved `up` or `down`."""
    offered = choosable(access)
    names = list(dict.fromkeys(n for n in request.args.getlist("column") if n in offered))
    for way, step in (("up", -1), ("down", 1)):
        moved = request.args.get(way)
        if moved in names:
            place = names.index(moved)
            names.insert(max(place + step, 0), names.pop(place))
    return names


def widths(access: Access) -> dict[str, int]:
    """The widths in pixels that the query string gives columns, such as `title:240`."""
    pairs = (text.partition(":") for text in request.args.getlist("width"))
    given = {name: pixels for name, _, pixels in pairs if name in access.readable}
    return {
        name: min(max(int(pixels), MIN_PIXELS), MAX_PIXELS)
        for name, pixels in sorted(given.items())
        if re.fullmatch("[0-9]{1,4}", pixels, re.ASCII)
    }


def width_args(widths: Mapping[str, int]) -> list[str]:
    """The widths of columns as the query string has them."""
    return [f"{name}:{pixels}" for name, pixels in sorted(widths.items())]


def shown(access: Access) -> list[str]:
    """The fields of the table: the one that names a record, and the columns."""
    named = name_field(access)
    return [*([named] if named else []), *(requested(access) or default(access))]


@lru_cache(display.MAX_CACHED)
def choosable(access: Access) -> list[str]:
    """All columns to choose from: the field that names a record is always the first one."""
    names = dict.fromkeys((*readable_fields(access), *access.readable))
    names.pop(name_field(access) or "", None)
    return sorted(names, key=lambda name: name in LAST)


def column(access: Access, listing: Listing, name: str, sort: str) -> Column:
    """A column of a list that is sorted by `sort`."""
    kind_ = kind(access.readable[name])
    width = widths(access).get(name) or _width(access, name) * PIXELS_PER_CHARACTER
    if name not in access.comparable or not access.comparable[name].filterable:
        return Column(name, kind_, None, None, width)
    order = {name: "ascending", f"-{name}": "descending"}.get(sort)
    next_sort = f"-{name}" if order == "ascending" else name
    url_args = {**listing.url_args, **listing.filters, "sort": next_sort}
    return Column(name, kind_, url_for(listing.endpoint, **url_args), order, width)


def labels(
    scope: CollectionScope, access: Access, rows: Sequence[JSONMapping], names: Sequence[str]
) -> Labels:
    """By reference field: the target collection, and the labels of its records by id."""
    found: Labels = {}
    for name in names:
        target = scope.collection.target(name) if name not in access.masked else None
        if target is not None:
            ids = [row[name] for row in rows if row.get(name) is not None]
            found[name] = (target.name, references.labels(target, ids, scope.by))
    return found
