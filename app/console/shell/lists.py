"""Where in a list a page is, and what of it is shown, by what the page's address says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flask import request, url_for

from app import clock

SIZE = 25
LONGEST_VALUE = 500  # characters of a value that are read for a list, which shows fewer
# No page counts further, and a question that no index answers is put to the newest ones only,
# unless `?count=all` or `?look=all` asks for it.
MOST_COUNTED, LOOKED_AT = 1_000, 5_000
WHOLE = ("count", "look")
LONGEST = 100  # of what is searched or filtered by
NO_MOMENT = "{} is no date and time, such as 2026-01-31T10:00."
TIMES = {"from_date": "From, in UTC", "to_date": "Until, in UTC"}
Choices = Mapping[str, Sequence[str] | Mapping[str, str]]


@dataclass
class Listing:
    """A part of a list, and how to get to the others."""

    endpoint: str
    at: Mapping[str, Any]
    choices: Choices = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)
    page: int = 1
    search: str = ""
    filters: dict[str, str] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    total: int = 0
    whole: set[str] = field(default_factory=set)
    """What is done to the end, however long it takes: of WHOLE."""
    looked_at: int | None = None
    """How many of the newest ones were looked at, where there are more."""
    more: bool = False
    """Whether there are more than `total`, which nobody has counted."""
    parsed: dict[str, datetime] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.moments.keys() & self.filters.keys():
            try:
                self.parsed[name] = clock.parse(self.filters[name])
            except ValueError:
                self.errors[name] = [NO_MOMENT.format(self.filters[name])]

    @property
    def wanted(self) -> Mapping[str, Any]:
        """The filters as the services take them, where none is wrong."""
        return {**self.filters, **self.parsed}

    @property
    def asked(self) -> Mapping[str, Any]:
        """The part as the services are asked for it."""
        return {"skip": self.skip, "limit": SIZE, "search": self.search}

    @property
    def skip(self) -> int:
        """How many items come before this part."""
        return (self.page - 1) * SIZE

    @property
    def most(self) -> int | None:
        """How far the services are to count; None for to the end."""
        return None if "count" in self.whole else MOST_COUNTED

    @property
    def pages(self) -> int:
        """How many parts there are."""
        return -(-self.total // SIZE)

    @property
    def has_next(self) -> bool:
        """Whether a part follows."""
        return self.page < self.pages or (self.more and len(self.items) == SIZE)

    @property
    def previous(self) -> int:
        """The number of the part before, or of the last one that there is."""
        return self.page - 1 if self.more else min(self.page - 1, max(self.pages, 1))

    @property
    def home(self) -> str:
        """The address of the whole list, from its beginning."""
        return url_for(self.endpoint, **self.at)

    @property
    def narrowed(self) -> bool:
        """Whether a search or a filter leaves something out."""
        return bool(self.search or self.filters)

    def link(self, page: int | None, **others: Any) -> str:
        """The address of another part, under the same search and filters."""
        whole = dict.fromkeys(self.whole, "all")
        kept: dict[str, Any] = {**self.at, **self.filters, **whole, "search": self.search or None}
        return url_for(self.endpoint, **{**kept, "page": page, **others})

    def holding(self, found: tuple[list[Any], int]) -> Listing:
        """This part with what was found for it; of more than `most`, nobody says how many."""
        self.items, self.total = found
        if self.most is not None:
            self.more, self.total = self.total > self.most, min(self.total, self.most)
        return self

    def searched(self, page: Callable[..., Any], place: Callable[[int], Any]) -> Listing:
        """This part of what `page` finds; a search looks at the newest ones only."""
        after = self.from_newest(place) if self.search else None
        return self.holding(page({**self.asked, "after": after}, most=self.most))

    def from_newest(self, place: Callable[[int], Any]) -> Any:
        """Where the newest ones begin that are looked at; None where all are.

        `place` finds what tells the place of the one that has so many newer ones.
        """
        found = None if "look" in self.whole else place(LOOKED_AT)
        self.looked_at = LOOKED_AT if found is not None else None
        return found


def told(number: int) -> str:
    """A number that was counted to one beyond MOST_COUNTED at most."""
    return f"{number:,}" if number <= MOST_COUNTED else f"{MOST_COUNTED:,}+"


def asked_for(
    endpoint: str,
    choices: Choices | None = None,
    texts: Mapping[str, str] | None = None,
    moments: Mapping[str, str] | None = None,
    **at: Any,
) -> Listing:
    """The part that `?page=`, `?search=` and the filters name; the first where they name none.

    The list stands on the page of `endpoint`; `choices` has the values of each filter (or what
    to call them), `texts` and `moments` what the filters are called where anything may be typed.
    """
    choices, texts, moments = choices or {}, texts or {}, moments or {}
    page = request.args.get("page", "")
    number = int(page) if re.fullmatch(r"[1-9][0-9]{0,6}", page, re.ASCII) else 1
    chosen = {name: _typed(name) for name in choices}
    filters = {name: value for name, value in chosen.items() if value in choices[name]}
    filters |= {name: text for name in (*texts, *moments) if (text := _typed(name))}
    whole = {name for name in WHOLE if request.args.get(name) == "all"}
    found = Listing(endpoint, at, choices, texts, moments, number, _typed("search"), filters)
    found.whole = whole
    return found


def _typed(name: str) -> str:
    return request.args.get(name, "").replace("\0", "").strip()[:LONGEST]
