"""Pagination, search and filters of a list page, read from the query string; ranges of days."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, cast

import flask_babel
from flask import request, url_for

from app import clock
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext, ngettext

RANGES = (1, 7, 30)
"""Days, up to and including today."""
ALL_DAYS = "all"
"""The range without a start."""

PAGE_SIZE = 25
MAX_VALUE_LENGTH = 500  # characters of a value that a list loads; it shows fewer
# Pages count and scan no further than this unless `?count=all` or `?look=all` asks for it. A
# condition without an index is tested on the newest rows only.
MAX_COUNTED, MAX_SCANNED = 1_000, 5_000
UNLIMITED = ("count", "look")
UNITS = ("KiB", "MiB", "GiB", "TiB")
MAX_INPUT_LENGTH = 100  # of a search or a filter
INVALID_TIME = lazy_gettext("%(value)s is not a date and time, such as 2026-01-31T10:00.")
TIME_FILTERS = {
    "from_date": lazy_gettext("From"),
    "to_date": lazy_gettext("Until"),
}
Choices = Mapping[str, Sequence[str] | Mapping[str, str]]
UrlArgs = JSONObject  # of `url_for`


@dataclass
class Listing:
    """One page of a list, and the links to the other pages."""

    endpoint: str
    url_args: UrlArgs
    choices: Choices = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    page: int = 1
    search: str = ""
    filters: JSONObject = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    total: int = 0
    unlimited: set[str] = field(default_factory=set)
    """The members of UNLIMITED that the query string asks for."""
    scanned: int | None = None
    """The number of newest rows scanned, if there are more."""
    has_more: bool = False
    """Whether counting stopped at `total`."""
    parsed: dict[str, datetime] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    sorts: Sequence[str] = ()
    """The columns that it can be sorted by."""
    default_sort: str = ""
    """A column, with a minus sign before it if descending; `sort` likewise."""
    sort: str = ""
    suggestions: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Values of some texts, with their labels."""

    def __post_init__(self) -> None:
        for name in self.times.keys() & self.filters.keys():
            try:
                self.parsed[name] = clock.parse(self.filters[name])
            except ValueError:
                self.errors[name] = [INVALID_TIME % {"value": self.filters[name]}]

    @property
    def filter_values(self) -> JSONMapping:
        """The filters as services take them, if all are valid."""
        return {**self.filters, **self.parsed}

    @property
    def page_args(self) -> Mapping[str, int | str]:
        """The pagination and search as services take them."""
        return {"skip": self.skip, "limit": PAGE_SIZE, "search": self.search}

    @property
    def skip(self) -> int:
        """The offset of this page."""
        return (self.page - 1) * PAGE_SIZE

    @property
    def count_limit(self) -> int | None:
        """The number at which services stop counting; None for no limit."""
        return None if "count" in self.unlimited else MAX_COUNTED

    @property
    def pages(self) -> int:
        return -(-self.total // PAGE_SIZE)

    @property
    def has_next(self) -> bool:
        return self.page < self.pages or (self.has_more and len(self.items) == PAGE_SIZE)

    @property
    def previous_page(self) -> int:
        """The number of the previous page, or of the last one for pages past the end."""
        return self.page - 1 if self.has_more else min(self.page - 1, max(self.pages, 1))

    @property
    def base_url(self) -> str:
        """The URL of the first page without search and filters."""
        return url_for(self.endpoint, **self.url_args)

    @property
    def ranges(self) -> list[Range]:
        """The ranges of days to choose from, if the list is filtered by time."""
        return ranges() if "from_date" in self.times else []

    @property
    def is_filtered(self) -> bool:
        """Whether a search or a filter is active."""
        return bool(self.search or self.filters)

    def page_url(self, page: int | None, **params: str) -> str:
        """The URL of another page with the same search and filters."""
        unlimited = dict.fromkeys(self.unlimited, "all")
        kept: UrlArgs = {**self.url_args, **self.filters, **unlimited}
        kept["search"] = self.search or None
        if self.sorts:
            kept["sort"] = self.chosen_sort
        return url_for(self.endpoint, **{**kept, "page": page, **params})

    @property
    def chosen_sort(self) -> str | None:
        """The sort order, unless it is the default."""
        return self.sort if self.sort != self.default_sort else None

    def sort_order(self, name: str) -> str | None:
        """The direction in which a column is sorted, as a value of `aria-sort`."""
        return {name: "ascending", f"-{name}": "descending"}.get(self.sort)

    def sort_url(self, name: str) -> str:
        """The URL of the first page sorted by a column; descending if it is ascending now."""
        sort = f"-{name}" if self.sort_order(name) == "ascending" else name
        return self.page_url(None, sort=sort)

    def with_page(self, result: tuple[list[Any], int]) -> Listing:
        """This page with its items and the total, which is cut at `count_limit`."""
        self.items, self.total = result
        if self.count_limit is not None:
            self.has_more = self.total > self.count_limit
            self.total = min(self.total, self.count_limit)
        return self

    def load_search(
        self,
        load: Callable[..., tuple[list[Any], int]],
        find_cutoff: Callable[[int], str | datetime | None],
    ) -> Listing:
        """This page as `load` returns it; a search scans the newest rows only."""
        after = self.scan_newest(find_cutoff) if self.search else None
        return self.with_page(load({**self.page_args, "after": after}, max_total=self.count_limit))

    def scan_newest(self, find_cutoff: Callable[[int], object]) -> Any:
        """The cutoff that limits the query to the newest rows; None to scan all.

        `find_cutoff(n)` returns the sort key of the row after the n newest ones, if there is one.
        """
        cutoff = None if "look" in self.unlimited else find_cutoff(MAX_SCANNED)
        self.scanned = MAX_SCANNED if cutoff is not None else None
        return cutoff


def format_count(number: int) -> str:
    """A count for display, such as `1,000+` for more than MAX_COUNTED."""
    is_cut = number > MAX_COUNTED
    return f"{format_number(min(number, MAX_COUNTED))}{'+' if is_cut else ''}"


def format_number(number: int) -> str:
    """A number with the separators of the page's language."""
    return cast(str, flask_babel.format_decimal(number))


def format_size(size: int) -> str:
    """A number of bytes for display, such as `1.5 GiB`."""
    if size < 1024:
        return ngettext("%(count)s byte", "%(count)s bytes", size, count=format_number(size))
    power = min((size.bit_length() - 1) // 10, len(UNITS))
    return f"{flask_babel.format_decimal(size / 1024**power, '#,##0.#')} {UNITS[power - 1]}"


def from_request(
    endpoint: str,
    choices: Choices | None = None,
    texts: Mapping[str, str] | None = None,
    times: Mapping[str, str] | None = None,
    sorts: Sequence[str] = (),
    **url_args: object,
) -> Listing:
    """The page of the list at `endpoint` that the query string asks for.

    `choices` has the values (or labels by value) of each select filter, `texts` and `times` the
    labels of free text and time filters. `sorts` has the columns to sort by, the default first,
    with a minus sign before it if descending.
    """
    choices, texts, times = choices or {}, texts or {}, times or {}
    number = page_number(request.args.get("page", ""))
    selected = {name: _parameter(name) for name in choices}
    filters = {name: value for name, value in selected.items() if value in choices[name]}
    filters |= {name: text for name in (*texts, *times) if (text := _parameter(name))}
    if "from_date" in times:
        starts = {str(one.days): one.start for one in ranges()} | {ALL_DAYS: None}
        if (chosen := _parameter("days")) in starts:
            filters = {name: value for name, value in filters.items() if name not in times}
            filters |= {"from_date": start} if (start := starts[chosen]) else {}
    unlimited = {name for name in UNLIMITED if request.args.get(name) == "all"}
    search = _parameter("search")
    listing = Listing(endpoint, url_args, choices, texts, times, number, search, filters)
    listing.unlimited = unlimited
    if sorts:
        listing.sorts = [name.removeprefix("-") for name in sorts]
        listing.default_sort, requested = sorts[0], _parameter("sort")
        listing.sort = requested if requested.removeprefix("-") in listing.sorts else sorts[0]
    return listing


def page_number(text: str) -> int:
    """The number of a page in a query string; the first for nonsense."""
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,6}", text, re.ASCII) else 1


def place(name: str) -> int | None:
    """The number of a row that the query string names; None for nonsense."""
    text = _parameter(name)
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,17}", text, re.ASCII) else None


def _parameter(name: str) -> str:
    return request.args.get(name, "").replace("\0", "").strip()[:MAX_INPUT_LENGTH]


@dataclass(frozen=True)
class Range:
    """The last days, and the text of the filter for the start of the first of them, in UTC."""

    days: int
    name: str
    start: str


def name_of_day(day: date) -> str:
    """Today, yesterday or the full date."""
    names = {0: gettext("Today"), 1: gettext("Yesterday")}
    days_ago = (clock.now().date() - day).days
    return names.get(days_ago) or cast(str, flask_babel.format_date(day, "full"))


def ranges() -> list[Range]:
    """The ranges that lists with filters by time offer."""
    today = clock.now().date()
    return [
        Range(days, _name_of_range(days), f"{today - timedelta(days - 1)}T00:00") for days in RANGES
    ]


def _name_of_range(days: int) -> str:
    return gettext("Today") if days == 1 else ngettext("%(num)s day", "%(num)s days", days)
