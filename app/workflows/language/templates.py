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
from app.types import JSONMapping, JSONObject
from app.workflows.language import expressions
from app.workflows.language.expressions import AvailableNames

TEMPLATE = re.compile(r"\{\{((?:(?!\{\{|\}\}).)*)\}\}", re.DOTALL)  # in linear time
PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
WORDS = ("true", "false", "null")
MAX_CHARACTERS = 2**20  # of all rendered templates of a step


class TooLarge(Exception):
    """The rendered templates exceed the limit of a step."""


@dataclass
class Rendering:
    """Renders templates, up to a number of characters."""

    names: JSONMapping
    now: datetime
    remaining: int = field(default=MAX_CHARACTERS)

    def config(self, config: JSONMapping) -> JSONObject:
        """A step's configuration with its templates rendered. Raises TooLarge."""
        return {name: self.value(part) for name, part in config.items()}

    def value(self, template: object) -> object:
        """A value with its templates rendered. Raises TooLarge."""
        if isinstance(template, str):
            if "{{" not in template:
                return template
            match = TEMPLATE.fullmatch(template.strip())
            if match:
                value = self._evaluate(match[1])
                self._spend(len(orjson.dumps(value)))
                return value
            return self._replace(template, lambda at, value: to_text(value))
        if isinstance(template, Mapping):
            return {name: self.value(item) for name, item in template.items()}
        return [self.value(item) for item in template] if isinstance(template, list) else template

    def filter(self, text: str) -> str:
        """A filter with its templates rendered as literals. Raises TooLarge."""
        return self._replace(
            text, lambda position, value: _literal(value, _quote_at(text, position))
        )

    def _replace(self, text: str, render: Callable[[int, object], str]) -> str:
        def replaced(match: re.Match[str]) -> str:
            part = render(match.start(), self._evaluate(match[1]))
            self._spend(len(part))
            return part

        return TEMPLATE.sub(replaced, text)

    def _evaluate(self, expression: str) -> object:
        name = expression.strip()
        if name == "now":
            return clock.iso(self.now)
        if PATH.fullmatch(name) and name not in WORDS:
            return expressions.get_path(self.names, tuple(name.split(".")))
        return plain(expressions.evaluate(name, self.names, self.now))

    def _spend(self, characters: int) -> None:
        self.remaining -= characters
        if self.remaining < 0:
            raise TooLarge


def has_template(value: object) -> bool:
    """Whether a value contains a template."""
    return any(True for _ in _templates(value, ""))


def blank(text: str) -> str:
    """A filter with placeholder values, for validation."""

    def placeholder(match: re.Match[str]) -> str:
        if _quote_at(text, match.start()):
            return ""
        return '[""]' if text[: match.start()].rstrip().lower().endswith(" in") else "null"

    return TEMPLATE.sub(placeholder, text)


def problems(
    value: object, available: AvailableNames, place: str
) -> Iterator[tuple[str, str, int]]:
    """The problems of the templates in a value: place, message, position."""
    for path, text in _texts(value, place):
        if text.count("{{") != len(TEMPLATE.findall(text)):
            yield path, "A template begins with {{ and ends with }}.", text.find("{{")
    for path, match in _templates(value, place):
        try:
            _check(match[1].strip(), available)
        except rules.RuleError as error:
            yield path, str(error), match.start() + error.position


def _check(expression: str, available: AvailableNames) -> None:
    if PATH.fullmatch(expression) and expression not in WORDS:
        if problem := available.wrong(tuple(expression.split("."))):
            raise rules.RuleError(problem, 0)
        return
    expressions.check(expressions.value(expression), available)


def expressions_in(value: object, place: str) -> Iterator[tuple[str, str]]:
    """The expressions of the templates in a value, with their places."""
    for path, match in _templates(value, place):
        yield path, match[1].strip()


def _templates(value: object, path: str) -> Iterator[tuple[str, re.Match[str]]]:
    for item_path, text in _texts(value, path):
        for match in TEMPLATE.finditer(text):
            yield item_path, match


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "{{" in value:
            yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")


def plain(value: object) -> object:
    """The value of an expression as JSON."""
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.isoformat() if isinstance(value, date) else value


def to_text(value: object) -> str:
    """A value within a text."""
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return values.written(plain(value))


def _quote_at(text: str, end: int) -> str | None:
    """The quote that is open at a position of an expression, if any."""
    quote, position = None, 0
    while position < end:
        character = text[position]
        if quote and character == "\\" and text[position + 1 : position + 2] in ("\\", '"', "'"):
            position += 1
        elif quote is None and character in "\"'":
            quote = character
        elif character == quote:
            quote = None
        position += 1
    return quote


def _literal(value: object, quote: str | None) -> str:
    if quote:
        return _escape(to_text(value), quote)
    if isinstance(value, list):
        return f"[{', '.join(_literal(item, None) for item in value)}]"
    if isinstance(value, str | dict):
        return f'"{_escape(to_text(value), chr(34))}"'
    return "null" if value is None else values.written(value)


def _escape(text: str, quote: str) -> str:
    return text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
