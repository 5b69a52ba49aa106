"""A caller's query of a list, from the route to the statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """A page of a list: which records, how many, and what of them."""

    parameters: Parameters
    """`filter`, `sort`, `fields`, `expand`, a cursor, and values by field, as they were sent."""
    skip: int = 0
    limit: int
    count: bool = False
    """Whether the total is wanted."""
    max_total: int | None = None
    """Stops counting at one more; None counts all."""
    since: datetime | None = None
    """Leaves out records that were created before."""
    cut: int | None = None
    """Truncates long values to so many characters."""
