"""Splits JSON into tokens, for highlighting without a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import orjson

MAX_HIGHLIGHTED_LENGTH = 20_000  # characters; longer texts are one token
MAX_LENGTH = 100_000  # characters; the rest is cut
TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*"(?=:))|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null)|[^\"0-9a-z-]+|."
)


class Token(NamedTuple):
    """A part of a text; `kind` is key, string, number, word or empty."""

    kind: str
    text: str


def pretty(value: object) -> list[Token]:
    # What is stored is passed through unparsed.
    plain = orjson.loads(orjson.dumps(value))
    text = orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()
    if len(text) > MAX_LENGTH:
        return [Token("", f"{text[:MAX_LENGTH]}…")]
    return list(_tokens(text)) if len(text) <= MAX_HIGHLIGHTED_LENGTH else [Token("", text)]


def _tokens(text: str) -> Iterator[Token]:
    for match in TOKEN.finditer(text):
        yield Token(match.lastgroup or "", match[0])
