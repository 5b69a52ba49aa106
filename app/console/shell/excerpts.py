"""Marks a part of a text within its surroundings."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTEXT_LENGTH = 60
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
