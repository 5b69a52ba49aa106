"""The data by which pages show the values of a field and take them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EQUALITY = ("=", "!=", "empty", "filled")
ORDER = ("=", "!=", "<", "<=", ">", ">=", "empty", "filled")
TEXT = ("=", "!=", "contains", "starts", "<", "<=", ">", ">=", "empty", "filled")


class WidgetKind(StrEnum):
    """A branch of `templates/console/records/widget.html`, or else the type of its input."""

    AREA = "area"
    CHOICE = "choice"
    CHOICES = "choices"
    DATE = "date"
    EMAIL = "email"
    ENTRIES = "entries"
    FILES = "files"
    FLAG = "flag"
    JSON = "json"
    MOMENT = "moment"
    NUMBER = "number"
    PERSON = "person"
    REFERENCE = "reference"
    TEXT = "text"
    TEXTS = "texts"
    URL = "url"


@dataclass(frozen=True)
class Face:
    """The input of a value in forms, its column in lists, and the comparisons of filters."""

    widget: WidgetKind = WidgetKind.TEXT

    comparisons: tuple[str, ...] = TEXT
    """The operators of filters, of `app.console.records.filters.OPERATORS`; none: no filter."""

    compared_in: str = "plain"
    """The input of a filter's value, a branch of `templates/console/records/filter.html`."""

    width: int = 24
    """The width of a column, in characters."""

    rank: int = 1
    """Which columns a list shows by itself: short values (0) first, long texts (2) last."""

    style: str = ""
    """The class of a column's cells: `number` aligns by the last digit, `whole` does not break."""

    longest: int = 60
    """Characters of a value in a list."""


CHOICE = Face(WidgetKind.CHOICE, EQUALITY, "choice", width=12, rank=0)
