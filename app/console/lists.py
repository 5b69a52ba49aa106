"""Where in a list a page is, by what its address says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import request

SIZE = 25
LONGEST_SEARCH = 100


@dataclass
class Listing:
    """A part of a list, and how to get to the others."""

    page: int = 1
    search: str = ""
    items: list[Any] = field(default_factory=list)
    total: int = 0

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

    def holding(self, found: tuple[list[Any], int]) -> Listing:
        """This part with what was found for it."""
        self.items, self.total = found
        return self


def asked_for() -> Listing:
    """The part that `?page=` and `?search=` name; the first where they name none."""
    page = request.args.get("page", "")
    number = int(page) if re.fullmatch(r"[1-9][0-9]{0,6}", page, re.ASCII) else 1
    return Listing(number, request.args.get("search", "").strip()[:LONGEST_SEARCH])
