"""Parses filters and paths (RFC 7644, sections 3.4.2.2 and 3.5.2), within bounds.

filter  = term *("or" term)          term = factor *("and" factor)
factor  = ["not"] "(" filter ")" / attrPath "[" filter "]" / attrPath ("pr" / op value)
path    = attrPath ["[" filter "]"] ["." subAttr]
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import BadRequest, Malformed
from app.sso.scim.errors import refusal
from app.types import JSONMapping
from app.web import serialization

MAX_LENGTH, MAX_DEPTH, MAX_COMPARISONS = 4000, 8, 50
MAX_COMPARISONS_OF_PATH = 5  # they are repeated for each member of a group
OPERATORS = ("eq", "ne", "co", "sw", "ew", "gt", "ge", "lt", "le")
PRESENT = "pr"
TOKEN = re.compile(
    r"""\s*(?:
      (?P<punctuation>[()\[\]])
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?![\w.:-])
    | (?P<name>[A-Za-z$][\w$.:-]*)
    | (?P<sub>\.[A-Za-z$][\w$-]*)
    )""",
    re.VERBOSE,
)
LITERALS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
Literal = str | int | float | bool | None


@dataclass(frozen=True)
class Comparison:
    """An attribute compared with a value, or asked for with `pr`."""

    attribute: str  # in lower case, such as name.givenname
    operator: str
    value: Literal = None


@dataclass(frozen=True)
class Junction:
    """Filters joined by `and` or `or`."""

    operator: str
    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Negation:
    """A filter that must not match."""

    inner: Filter


@dataclass(frozen=True)
class ValuePath:
    """A filter on the values of one attribute, such as `emails[type eq "work"]`."""

    attribute: str
    inner: Filter


Filter = Comparison | Junction | Negation | ValuePath


@dataclass(frozen=True)
class Path:
    """The target of a PATCH operation."""

    attribute: str
    filter: Filter | None = None
    sub: str | None = None


def parse(text: str, schema: str) -> Filter:
    """Parse a filter on resources of a schema. Raises BadRequest `invalidFilter`."""
    parser = _Parser(text, schema, "invalidFilter", MAX_COMPARISONS)
    parsed = parser.filter()
    parser.end()
    return parsed


def parse_path(text: str, schema: str) -> Path:
    """Parse the path of a PATCH operation. Raises BadRequest `invalidPath`."""
    parser = _Parser(text, schema, "invalidPath", MAX_COMPARISONS_OF_PATH)
    path = parser.path()
    parser.end()
    return path


class _Parser:
    """A recursive descent over the tokens of a text."""

    def __init__(self, text: str, schema: str, scim_type: str, comparisons: int) -> None:
        self._scim_type, self._prefix = scim_type, f"{schema.lower()}:"
        self._position = self._depth = self._comparisons = 0
        self._max_comparisons = comparisons
        if len(text) > MAX_LENGTH:
            raise self._error(f"It has more than {MAX_LENGTH:,} characters.")
        self._tokens = self._split(text)

    def _split(self, text: str) -> list[tuple[str, str]]:
        tokens, position, text = [], 0, text.strip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                raise self._error(f"Unexpected character at {position + 1}.")
            tokens.append((str(match.lastgroup), str(match[str(match.lastgroup)])))
            position = match.end()
        return tokens

    def _error(self, message: str) -> BadRequest:
        return refusal(self._scim_type, message)

    def _next(self) -> tuple[str, str]:
        if self._position == len(self._tokens):
            raise self._error("It ends too early.")
        self._position += 1
        return self._tokens[self._position - 1]

    def _peek(self, *texts: str) -> str | None:
        """Return the next token in lower case, if it is one of these, and leave it there."""
        if self._position == len(self._tokens):
            return None
        kind, text = self._tokens[self._position]
        return text.lower() if kind != "string" and text.lower() in texts else None

    def _take(self, *texts: str) -> str | None:
        """Return the next token in lower case, if it is one of these, and go on behind it."""
        token = self._peek(*texts)
        if token is not None:
            self._position += 1
        return token

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"Missing “{text}”.")

    def end(self) -> None:
        """Raise BadRequest if anything is left."""
        if self._position < len(self._tokens):
            raise self._error(f"Unexpected “{self._tokens[self._position][1][:50]}”.")

    def path(self) -> Path:
        """path = attrPath ["[" filter "]"] ["." subAttr]"""
        name, inner = self._attribute(), None
        if self._take("["):
            inner = self.filter()
            self._expect("]")
        head, _, sub = name.partition(".")
        if inner is not None and self._position < len(self._tokens):
            kind, text = self._next()
            if kind != "sub":
                raise self._error("Only a sub-attribute may follow “]”.")
            sub = text[1:].lower()
        return Path(head, inner, sub or None)

    def filter(self) -> Filter:
        """filter = term *("or" term)"""
        return self._joined("or", self._term)

    def _term(self) -> Filter:
        """term = factor *("and" factor)"""
        return self._joined("and", self._factor)

    def _joined(self, word: str, parse: Callable[[], Filter]) -> Filter:
        parts = [parse()]
        while self._take(word):
            parts.append(parse())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _factor(self) -> Filter:
        """factor = ["not"] "(" filter ")" / attrPath "[" filter "]" / comparison"""
        negated = self._take("not") is not None
        if negated or self._peek("("):
            inner = self._nested("(", ")")
            return Negation(inner) if negated else inner
        name = self._attribute()
        if self._peek("["):
            return ValuePath(name, self._nested("[", "]"))
        return self._comparison(name)

    def _nested(self, opening: str, closing: str) -> Filter:
        self._expect(opening)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"It is nested deeper than {MAX_DEPTH} levels.")
        inner = self.filter()
        self._depth -= 1
        self._expect(closing)
        return inner

    def _comparison(self, name: str) -> Comparison:
        """comparison = attrPath ("pr" / op value)"""
        self._comparisons += 1
        if self._comparisons > self._max_comparisons:
            raise self._error(f"It has more than {self._max_comparisons} comparisons.")
        if self._take(PRESENT):
            return Comparison(name, PRESENT)
        chosen = self._take(*OPERATORS)
        if chosen is None:
            raise self._error(f"An operator must follow “{name[:50]}”.")
        return Comparison(name, chosen, self._literal())

    def _attribute(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise self._error(f"“{text[:50]}” is no attribute.")
        return text.lower().removeprefix(self._prefix)

    def _literal(self) -> Literal:
        kind, text = self._next()
        if kind == "name" and text.lower() in LITERALS:
            return LITERALS[text.lower()]
        if kind not in ("string", "number"):
            raise self._error(f"“{text[:50]}” is no value.")
        try:
            value: Any = serialization.parse(text.encode())
        except Malformed:
            raise self._error(f"{text[:50]} is no JSON value.") from None
        literal: Literal = value
        return literal


COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "co": operator.contains,
    "sw": str.startswith,
    "ew": str.endswith,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


def matches(condition: Filter, element: JSONMapping) -> bool:
    """Whether a value of a multi-valued attribute matches the filter of a path."""
    if isinstance(condition, Negation):
        return not matches(condition.inner, element)
    if isinstance(condition, Junction):
        combine = all if condition.operator == "and" else any
        return combine(matches(part, element) for part in condition.parts)
    if isinstance(condition, ValuePath):
        return False  # the values of an element have no elements of their own
    value = next((v for name, v in element.items() if name.lower() == condition.attribute), None)
    if condition.operator == PRESENT:
        return value is not None
    if condition.operator == "ne":
        return not _compare("eq", value, condition.value)
    return _compare(condition.operator, value, condition.value)


def _compare(name: str, value: object, expected: Literal) -> bool:
    if isinstance(value, str) and isinstance(expected, str):
        return COMPARE[name](value.lower(), expected.lower())
    # As Microsoft writes booleans: primary eq "True".
    return name == "eq" and str(value).lower() == str(expected).lower()
