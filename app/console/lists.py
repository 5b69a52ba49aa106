"""Where in a list a page is, and what of it is shown, by what the page's address says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flask import request, url_for

SIZE = 25
LONGEST_SEARCH = 100


@dataclass
class Listing:
    """A part of a list, and how to get to the others."""

    endpoint: str
    at: Mapping[str, Any]
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    page: int = 1
    search: str = ""
    filters: dict[str, str] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    total: int = 0
    more: bool = False
    """Whether there are more than `total`, which nobody has counted."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """The part as the services are asked for it."""
        return {"skip": self.skip, "limit": SIZE, "search": self.search}

    @property
    def skip(self) -> int:
        """How many items come before this part."""
        return (self.page - 1) * SIZE

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

    def link(self, page: int) -> str:
        """The address of another part, under the same search and filters."""
        kept: dict[str, Any] = {**self.at, **self.filters, "search": self.search or None}
        return url_for(self.endpoint, page=page, **kept)

    def holding(self, found: tuple[list[Any], int]) -> Listing:
        """This part with what was found for it."""
        self.items, self.total = found
        return self

    def counted_to(self, most: int) -> Listing:
        """This part, whose total was counted up to one beyond `most`."""
        self.more, self.total = self.total > most, min(self.total, most)
        return self


def asked_for(
    endpoint: str, choices: Mapping[str, Sequence[str]] | None = None, **at: Any
) -> Listing:
    """The part that `?page=`, `?search=` and the filters name; the first where they name none.

    The list stands on the page of `endpoint`; `choices` has the values of each filter.
    """
    page, choices = request.args.get("page", ""), choices or {}
    number = int(page) if re.fullmatch(r"[1-9][0-9]{0,6}", page, re.ASCII) else 1
    search = request.args.get("search", "").strip()[:LONGEST_SEARCH]
    wanted = {name: request.args.get(name, "") for name in choices}
    filters = {name: value for name, value in wanted.items() if value in choices[name]}
    return Listing(endpoint, at, choices, number, search, filters)
