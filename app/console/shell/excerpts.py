"""A part of a text marked within what stands around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

AROUND = 60
WORD = re.compile(r"@?\w+|\S")


@dataclass(frozen=True)
class Excerpt:
    """What is marked and what stands around it; it begins `at` that character, from 1."""

    before: str
    marked: str
    after: str
    at: int


def excerpt(text: str, position: int) -> Excerpt:
    """The word at a position, with what is near it; at the text's end nothing is marked."""
    word = WORD.match(text, position)
    end = word.end() if word else position
    before, after = text[max(position - AROUND, 0) : position], text[end : end + AROUND]
    before = f"…{before}" if position > AROUND else before
    after = f"{after}…" if len(text) > end + AROUND else after
    return Excerpt(before, text[position:end], after, position + 1)


def within(text: str, part: str, position: int) -> Excerpt:
    """A part of a text with all of the text around it."""
    end = position + len(part)
    return Excerpt(text[:position], part, text[end:], position + 1)
