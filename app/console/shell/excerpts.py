"""Marks a part of a text within its surroundings, and what differs between two texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from markupsafe import Markup

CONTEXT_LENGTH = 60
MIN_COMMON = 10  # characters that two texts share before their difference is marked
WORD = re.compile(r"@?\w+|\S")


@dataclass(frozen=True)
class Excerpt:
    """A marked part with the text around it; `column` counts characters from 1."""

    before: str
    marked: str
    after: str
    column: int


def excerpt(text: str, position: int) -> Excerpt:
    """The word at a position with nearby text; marks nothing at the end of the text."""
    word = WORD.match(text, position)
    end = word.end() if word else position
    before = text[max(position - CONTEXT_LENGTH, 0) : position]
    after = text[end : end + CONTEXT_LENGTH]
    before = f"…{before}" if position > CONTEXT_LENGTH else before
    after = f"{after}…" if len(text) > end + CONTEXT_LENGTH else after
    return Excerpt(before, text[position:end], after, position + 1)


def highlight(text: str, part: str, position: int) -> Excerpt:
    """The whole text with one part marked."""
    end = position + len(part)
    return Excerpt(text[:position], part, text[end:], position + 1)


def differences(before: str | None, after: str | None) -> tuple[Excerpt, Excerpt] | None:
    """Both texts with what differs marked; None if they share too little, or are markup."""
    if not before or not after or isinstance(before, Markup) or isinstance(after, Markup):
        return None
    start = _common_start(before, after)
    same_end = _common_start(before[start:][::-1], after[start:][::-1])
    if start + same_end < MIN_COMMON:
        return None
    old, new = (text[start : len(text) - same_end] for text in (before, after))
    return highlight(before, old, start), highlight(after, new, start)


def _common_start(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
