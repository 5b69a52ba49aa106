"""Renders `{{ ... }}` templates: names and expressions over an instance's data.

A template that is the whole value keeps its type; within a text it becomes text. In filters it
becomes a literal, so that no value can change the filter's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

import orjson

from app import clock, rules
from app.rules import values
from app.types import JSONMapping
from app.workflows.language import expressions
from app.workflows.language.expressions import Known

TEMPLATE = re.compile(r"\{\{((?:(?!\{\{|\}\}).)*)\}\}", re.DOTALL)  # in linear time
PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
WORDS = ("true", "false", "null")
MOST_CHARACTERS = 2**20  # that templates of one step are replaced by


class TooLarge(Exception):
    """The rendered templates exceed the limit of a step."""


@dataclass
class Rendering:
    """Renders templates, up to a number of characters."""

    names: JSONMapping
    now: datetime
    left: int = field(default=MOST_CHARACTERS)

    def value(self, given: object) -> object:
        """A value with its templates rendered. Raises TooLarge."""
        if isinstance(given, str):
            return self._text(given)
        if isinstance(given, Mapping):
            return {name: self.value(one) for name, one in given.items()}
        return [self.value(one) for one in given] if isinstance(given, list) else given

    def filter(self, text: str) -> str:
        """A filter with its templates rendered as literals. Raises TooLarge."""
        return self._joined(text, lambda at, found: _literal(found, _quote_at(text, at)))

    def _text(self, text: str) -> object:
        if "{{" not in text:
            return text
        whole = TEMPLATE.fullmatch(text.strip())
        if whole:
            found = self._found(whole[1])
            self._spend(len(orjson.dumps(found)))
            return found
        return self._joined(text, lambda at, found: written(found))

    def _joined(self, text: str, form: Callable[[int, object], str]) -> str:
        def replaced(match: re.Match[str]) -> str:
            part = form(match.start(), self._found(match[1]))
            self._spend(len(part))
            return part

        return TEMPLATE.sub(replaced, text)

    def _found(self, inner: str) -> object:
        name = inner.strip()
        if name == "now":
            return clock.iso(self.now)
        if PATH.fullmatch(name) and name not in WORDS:
            return expressions.looked_up(self.names, tuple(name.split(".")))
        return plain(expressions.evaluated(name, self.names, self.now))

    def _spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise TooLarge


def has_template(given: object) -> bool:
    """Whether a value contains a template."""
    return any(True for _ in _templates(given, ""))


def blank(text: str) -> str:
    """A filter with placeholder values, for validation."""

    def instead(match: re.Match[str]) -> str:
        if _quote_at(text, match.start()):
            return ""
        return '[""]' if text[: match.start()].rstrip().lower().endswith(" in") else "null"

    return TEMPLATE.sub(instead, text)


def wrong(given: object, known: Known, place: str) -> Iterator[tuple[str, str, int]]:
    """The problems of the templates in a value: place, message, position."""
    for where, text in _texts(given, place):
        if text.count("{{") != len(TEMPLATE.findall(text)):
            yield where, "A template begins with {{ and ends with }}.", text.find("{{")
    for where, match in _templates(given, place):
        try:
            _check(match[1].strip(), known)
        except rules.RuleError as error:
            yield where, str(error), match.start() + error.position


def _check(inner: str, known: Known) -> None:
    if PATH.fullmatch(inner) and inner not in WORDS:
        if problem := known.wrong(tuple(inner.split("."))):
            raise rules.RuleError(problem, 0)
        return
    expressions.check(expressions.value(inner), known)


def _templates(given: object, place: str) -> Iterator[tuple[str, re.Match[str]]]:
    for where, text in _texts(given, place):
        for match in TEMPLATE.finditer(text):
            yield where, match


def _texts(given: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(given, str):
        if "{{" in given:
            yield place, given
    elif isinstance(given, Mapping):
        for name, one in given.items():
            yield from _texts(one, f"{place}.{name}")
    elif isinstance(given, list):
        for index, one in enumerate(given):
            yield from _texts(one, f"{place}[{index}]")


def plain(value: object) -> object:
    """The value of an expression as JSON."""
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.isoformat() if isinstance(value, date) else value


def written(value: object) -> str:
    """A value within a text."""
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return values.written(plain(value))


def _quote_at(text: str, end: int) -> str | None:
    """The quote that is open at a position of an expression, if any."""
    quote, at = None, 0
    while at < end:
        character = text[at]
        if quote and character == "\\" and text[at + 1 : at + 2] in ("\\", '"', "'"):
            at += 1
        elif quote is None and character in "\"'":
            quote = character
        elif character == quote:
            quote = None
        at += 1
    return quote


def _literal(value: object, quote: str | None) -> str:
    if quote:
        return _escaped(written(value), quote)
    if isinstance(value, list):
        return f"[{', '.join(_literal(one, None) for one in value)}]"
    if isinstance(value, str | dict):
        return f'"{_escaped(written(value), chr(34))}"'
    return "null" if value is None else values.written(value)


def _escaped(text: str, quote: str) -> str:
    return text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
