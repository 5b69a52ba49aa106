"""Splits the text of an expression into tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

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
PARAMETER = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\{(?P<name>[A-Za-z_]\w*)\}|["'{]""",
    re.DOTALL | re.ASCII,
)
LONGEST_VALUE = 1000
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


class UnfitText(ValueError):
    """A text that no literal can have: too long, or with a character that no database stores."""


def filled(text: str, given: Mapping[str, object]) -> str:
    """An expression with literals of the `given` values in place of each `{name}`.

    In quotes `{name}` stays as it is. Raises RuleError for what is not given, not used or no value,
    UnfitText with the name of a text that is none.
    """
    used = set[str]()

    def literal(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None and found["text"] is None:
            raise RuleError(f"Here stands a single {found[0]}.", found.start())
        if name is None:
            return found[0]
        if name not in given:
            raise RuleError(f"{found[0]} has no value.", found.start())
        used.add(name)
        return _literal(given[name], found)

    done = PARAMETER.sub(literal, text)
    if unused := sorted(given.keys() - used):
        raise RuleError(f"{', '.join(unused)} stands nowhere in the text.", 0)
    return done


def _literal(value: object, place: re.Match[str]) -> str:
    if isinstance(value, date | UUID):
        value = str(value) if isinstance(value, UUID) else value.isoformat()
    if isinstance(value, str):
        if FORBIDDEN.search(value) or len(value) > LONGEST_VALUE:
            raise UnfitText(place["name"])
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(_literal(one, place) for one in value)}]"
    if value is None:
        return "null"
    if not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        raise RuleError(f"{place[0]} has a value of no type of this language.", place.start())
    exact = values.settled(value) if isinstance(value, Decimal) else value
    if exact is None:
        raise RuleError(f"{place[0]} is out of range.", place.start())
    return values.written(exact)


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
