"""The columns of a record table: which ones, in which order, how wide, and how values look."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flask import request, url_for

from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import Field, entries
from app.collections.fields.face import Face
from app.console.records import display, references
from app.console.shell import forms
from app.console.shell.lists import Listing
from app.console.shell.scopes import CollectionScope
from app.types import JSONMapping

ROOM, NAME_WIDTH, GAP = 150, 24, 3  # characters; the default columns fit beside the name
MIN_PIXELS, MAX_PIXELS = 64, 1200  # of the width that a user gives a column
PIXELS_PER_CHARACTER = 8  # about
LAST = ("id", "account_id", "created_by", "updated_by")  # of the fields to choose from
Labels = dict[str, tuple[str, dict[str, str]]]


@dataclass(frozen=True)
class Column:
    """A column: its field, the look of its values, its sort link and sort order."""

    name: str
    face: Face
    target: str | None
    sorted: str | None
    width: int
    """Pixels, in a table whose columns have widths."""


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
    room = ROOM - NAME_WIDTH - GAP - _width(access, "created_at")
    chosen = []
    for name in sorted(readable_fields(access), key=lambda name: _rank(access.readable[name])):
        width = _width(access, name)
        if name != named and width <= room:
            chosen.append(name)
            room -= width
    return [*chosen, "created_at"]


def _rank(field: Field) -> int:
    is_last = field.face.rank == 2 and field.like is not field  # long texts that are computed
    return field.face.rank + is_last


def _width(access: Access, name: str) -> int:
    return max(access.readable[name].face.width, len(name)) + GAP


def requested(access: Access) -> list[str]:
    """The columns that the query string names, one of them moved `up` or `down`."""
    offered = choosable(access)
    names = list(dict.fromkeys(n for n in request.args.getlist("column") if n in offered))
    for way in forms.ROW_STEPS:
        moved = request.args.get(way)
        if moved in names:
            forms.move_row(names, names.index(moved), way)
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
    face = access.readable[name].face
    width = widths(access).get(name) or _width(access, name) * PIXELS_PER_CHARACTER
    if name not in access.comparable or not access.comparable[name].filterable:
        return Column(name, face, None, None, width)
    order = {name: "ascending", f"-{name}": "descending"}.get(sort)
    next_sort = f"-{name}" if order == "ascending" else name
    url_args = {**listing.url_args, **listing.filters, "sort": next_sort}
    return Column(name, face, url_for(listing.endpoint, **url_args), order, width)


def labels(
    scope: CollectionScope, access: Access, rows: Sequence[JSONMapping], names: Sequence[str]
) -> Labels:
    """By reference field: the target collection, and the labels of its records by id.

    People have no collection.
    """
    found: Labels = {}
    for name in names:
        target = scope.collection.followed(name) if name not in access.masked else None
        if target is not None:
            field = access.definition.fields[name]
            ids = [id for row in rows for id in entries(field, row.get(name))]
            collection = target.name if isinstance(target, Definition) else ""
            found[name] = (collection, references.labels(target, ids, scope.by))
    return found
