"""Marks what differs between the old and the new value of a field."""

from __future__ import annotations

from itertools import takewhile

from markupsafe import Markup

from app.console.records.display import display
from app.types import JSONMapping

MAX_LENGTH = 500


def compared(change: JSONMapping) -> dict[str, str]:
    """The old and the new value for display; in texts that share a part, the rest is marked."""
    old, new = (
        display(change.get(side), MAX_LENGTH, exact=True) for side in ("old_value", "new_value")
    )
    if not isinstance(old, Markup) and not isinstance(new, Markup):
        start = _shared(old, new)
        end = _shared(old[start:][::-1], new[start:][::-1])
        if start + end:
            old, new = (_marked(text, start, len(text) - end) for text in (old, new))
    return {"old_value": old, "new_value": new}


def _shared(first: str, second: str) -> int:
    """The number of characters that both texts start with."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _marked(text: str, start: int, end: int) -> str:
    changed = Markup("<mark>{}</mark>").format(text[start:end]) if start < end else ""
    return Markup("{}{}{}").format(text[:start], changed, text[end:])
