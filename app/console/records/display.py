"""How records look: values and labels as texts, and the columns of a table of them.

Which columns, in which order, and how wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import orjson
from flask import request, url_for
from markupsafe import Markup

from app.accounts import directory
from app.auth.principal import rule_caller
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.definitions import PERSONS, ViewDefinition
from app.collections.fields import Field
from app.collections.fields.face import Face
from app.collections.people import People
from app.console.shell import forms
from app.console.shell.lists import Listing
from app.rules import Type
from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext

YES, NO = lazy_gettext("yes"), lazy_gettext("no")
MAX_LENGTH = 60  # characters of a value in a table
MAX_LABEL_LENGTH = 80
MAX_CACHED = 256  # what follows from an access alone, which lasts for a caller
# In characters: the default columns fit beside the name.
TABLE_ROOM, NAME_WIDTH, COLUMN_GAP = 150, 24, 3
MIN_PIXELS, MAX_PIXELS = 64, 1200  # of the width that a user gives a column
WIDTHS = {"min_width": MIN_PIXELS, "max_width": MAX_PIXELS}
PIXELS_PER_CHARACTER = 8  # about
MAX_CHARTS, MAX_BARS = 3, 20  # of a grouped view
Labels = dict[str, tuple[str, dict[str, str]]]
LAST_CHOICES = ("id", "account_id", "created_by", "updated_by")  # of the fields to choose from


def format_value(value: object, longest: int = MAX_LENGTH, *, exact: bool = False) -> str:
    """A value of a record for a list; `exact` writes times in full, for evidence."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(YES if value else NO)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    elif names := _file_names(value):
        text = ", ".join(names)
    else:
        text = json_text(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text, re.ASCII):
        moment = f"{text[:10]} {text[11 : 19 if exact else 16]} UTC"
        mark = Markup(" data-exact") if exact else ""
        return Markup('<time datetime="{}"{}>{}</time>').format(text, mark, moment)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _file_names(value: object) -> list[str]:
    """The names of the files of a value; none for other values."""
    files = value if isinstance(value, list) else [value]
    known = [one for one in files if isinstance(one, dict) and one.keys() >= {"name", "sha256"}]
    return [str(one["name"]) for one in known] if len(known) == len(files) else []


def json_text(value: object) -> str:
    # JSON of a record is passed through unparsed; that of its history has been read.
    is_json = isinstance(value, orjson.Fragment | dict | list)
    return orjson.dumps(value).decode() if is_json else str(value)


@lru_cache(MAX_CACHED)
def label_fields(access: Access) -> list[str]:
    """The text fields that label a record: those that the caller sees unmasked; choices last."""
    declared = access.definition.declared
    texts = (name for name, spec in declared.items() if spec.names_records)
    comparable = (name for name in texts if name in access.comparable)
    return sorted(comparable, key=lambda name: "choices" in declared[name].options)


def label(record: JSONMapping, names: Iterable[str]) -> str:
    """The label of a record: its first text that is not blank, else the end of its id."""
    texts = (str(record[name]).strip() for name in names if record.get(name))
    return shorten(next(filter(None, texts), f"…{record['id'][-8:]}"))


def shorten(text: str) -> str:
    """A text on one line, no longer than a label."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…"


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
    return next(iter(label_fields(access)), None)


@lru_cache(MAX_CACHED)
def readable_fields(access: Access) -> list[str]:
    """The declared fields that the caller may see."""
    return [name for name in access.definition.declared if name in access.readable]


@lru_cache(MAX_CACHED)
def default_columns(access: Access) -> list[str]:
    """The columns that fit beside the name: short values first, long texts last."""
    named = name_field(access)
    last = [name for name in ("created_at",) if name in access.readable]
    room = TABLE_ROOM - NAME_WIDTH - COLUMN_GAP - sum(_column_width(access, n) for n in last)
    chosen = []
    for name in sorted(
        readable_fields(access), key=lambda name: _column_rank(access.readable[name])
    ):
        width = _column_width(access, name)
        if name != named and width <= room:
            chosen.append(name)
            room -= width
    return [*chosen, *(name for name in last if name not in chosen)]


def _column_rank(field: Field) -> int:
    is_last = field.face.rank == 2 and field.like is not field  # long texts that are computed
    return field.face.rank + is_last


def _column_width(access: Access, name: str) -> int:
    return max(access.readable[name].face.width, len(name)) + COLUMN_GAP


def requested_columns(access: Access) -> list[str]:
    """The columns that the query string names, one of them moved `up` or `down`."""
    offered = choosable_columns(access)
    names = list(dict.fromkeys(n for n in request.args.getlist("column") if n in offered))
    for way in forms.ROW_STEPS:
        moved = request.args.get(way)
        if moved in names:
            forms.move_row(names, names.index(moved), way)
    return names


def column_widths(access: Access) -> dict[str, int]:
    """The widths in pixels that the query string gives columns, such as `title:240`."""
    pairs = (text.partition(":") for text in request.args.getlist("width"))
    given = {name: pixels for name, _, pixels in pairs if name in access.readable}
    return {
        name: min(max(int(pixels), MIN_PIXELS), MAX_PIXELS)
        for name, pixels in sorted(given.items())
        if re.fullmatch("[0-9]{1,4}", pixels, re.ASCII)
    }


def shown_fields(access: Access) -> list[str]:
    """The fields of the table: the one that names a record, and the columns."""
    named = name_field(access)
    return [*([named] if named else []), *(requested_columns(access) or default_columns(access))]


@lru_cache(MAX_CACHED)
def choosable_columns(access: Access) -> list[str]:
    """All columns to choose from: the field that names a record is always the first one."""
    names = dict.fromkeys((*readable_fields(access), *access.readable))
    names.pop(name_field(access) or "", None)
    return sorted(names, key=lambda name: name in LAST_CHOICES)


def column(access: Access, listing: Listing, name: str, sort: str) -> Column:
    """A column of a list that is sorted by `sort`."""
    face, compared = access.readable[name].face, access.comparable.get(name)
    key = _sort_key(access, name) if compared and compared.filterable else None
    width = column_widths(access).get(name) or _column_width(access, name) * PIXELS_PER_CHARACTER
    if key is None:
        return Column(name, face, None, None, width)
    order = {key: "ascending", f"-{key}": "descending"}.get(sort)
    next_sort = f"-{key}" if order == "ascending" else key
    url_args = {**listing.url_args, **listing.filters, "sort": next_sort}
    return Column(name, face, url_for(listing.endpoint, **url_args), order, width)


def _sort_key(access: Access, name: str) -> str:
    """What the head of a column sorts by: references by the field that names their records."""
    definition = access.definition
    if name in definition.lists or not (name in definition.references or name in PERSONS):
        return name
    target = definition.expanded(name)
    if isinstance(target, People):
        shown = (
            directory.shown_fields(rule_caller(access.caller)) if access.caller.signed_in else ()
        )
        return f"{name}.name" if "name" in (shown or ()) else name
    view = accesses.if_open(access.caller, target, "view") if target else None
    named_by = name_field(view) if view else None
    return f"{name}.{named_by}" if named_by else name


@dataclass(frozen=True)
class GroupBar:
    """A row of a grouped view: what it stands for, a value, and its bar in percent."""

    label: str
    value: str
    x: float
    width: float
    is_negative: bool


@dataclass(frozen=True)
class GroupChart:
    """A bar for each row of a grouped view."""

    title: str
    bars: Sequence[GroupBar]


def group_charts(
    view: ViewDefinition, rows: Sequence[JSONMapping], labels: Labels, shown: Sequence[str]
) -> list[GroupChart]:
    """The charts of the first shown aggregates that are numbers, of the first rows of a list."""
    keys = [one.name for one in view.read_columns if one.function is None]
    if not keys or len(rows) < 2:
        return []
    names = [_group_label(row, keys, labels) for row in rows[:MAX_BARS]]
    numbers = [
        one.name
        for one in view.read_columns
        if one.function and one.name in shown and _is_number(view.declared[one.name])
    ]
    return [
        GroupChart(
            gettext("%(value)s by %(fields)s", value=name, fields=", ".join(keys)),
            _bars(names, [row[name] for row in rows[:MAX_BARS]]),
        )
        for name in numbers[:MAX_CHARTS]
    ]


def _is_number(field: Field) -> bool:
    return field.like.rule_type in (Type.NUMBER, Type.DECIMAL)


def _group_label(row: JSONMapping, keys: Iterable[str], labels: Labels) -> str:
    values = ((labels.get(key, ("", {}))[1].get(row[key], row[key])) for key in keys)
    texts = [str(format_value(one)) or gettext("none") for one in values]
    return shorten(", ".join(texts))


def _bars(names: Sequence[str], values: Sequence[object]) -> list[GroupBar]:
    """Bars from zero, whose longest ones fill the room; values that are null have none."""
    numbers = [0.0 if one is None else float(str(one)) for one in values]
    lowest, highest = min(0.0, *numbers), max(0.0, *numbers)
    room = (highest - lowest) or 1.0
    return [
        GroupBar(
            name,
            format_value(value) or gettext("none"),
            x=round((min(number, 0.0) - lowest) / room * 100, 2),
            width=round(abs(number) / room * 100, 2),
            is_negative=number < 0,
        )
        for name, value, number in zip(names, values, numbers, strict=True)
    ]
