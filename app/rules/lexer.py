"""Splits the text of an expression into tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from app.rules import values
from app.rules.nodes import RuleError

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<name>@?[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>\|\||&&|!=|!~|<=|>=|[=<>~!+\-*/%()\[\],.])""",
    re.VERBOSE | re.DOTALL,
)
FORBIDDEN = re.compile("[\0\ud800-\udfff]")  # characters that no database stores
KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "true", "false", "null"})


@dataclass(frozen=True)
class Token:
    """A word of the text: `kind` is number, text, name, keyword, symbol or end."""

    kind: str
    value: str
    start: int
    end: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.value}`"


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text, the last one of kind `end`. Raises RuleError."""
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            character = text[position]
            message = f"The character {character!r} means nothing here."
            if character in "\"'":
                message = "This text has no closing quote."
            raise RuleError(message, position)
        kind, start, position = str(match.lastgroup), position, match.end()
        if kind != "space":
            found.append(_token(kind, match.group(), start, position))
    for one, following in pairwise(found):
        touches = one.end == following.start
        if touches and one.kind == "number" and following.kind in ("name", "keyword", "number"):
            raise RuleError(f"A number ends before {following}.", following.start)
    return [*found, Token("end", "", len(text), len(text))]


def _token(kind: str, raw: str, start: int, end: int) -> Token:
    if kind == "text":
        if wrong := FORBIDDEN.search(raw):
            raise RuleError("No text holds this character.", start + wrong.start())
        # A backslash escapes a quote or another backslash; elsewhere it is part of the text.
        written = re.sub(r"""\\([\\"'])""", r"\1", raw[1:-1])
        return Token(kind, values.composed(written), start, end)
    if raw in KEYWORDS:
        return Token("keyword", raw, start, end)
    return Token(kind, raw, start, end)
