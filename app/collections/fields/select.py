"""The field types `select` and `multi_select`: one or several of a list of choices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import orjson

from app import rules
from app.collections.fields.face import CHOICE, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.collections.fields.json import JsonField
from app.types import JSONMapping, JSONObject
from app.web.languages import lazy_gettext

MAX_CHOICES, LONGEST_CHOICE = 500, 200
MAX_NAMED = 20  # choices that a message names


class SelectField(Field):
    type = "select"
    label = lazy_gettext("Single choice")
    face = CHOICE
    fills_indexes = True
    known_options = ("choices", "index", "search")

    @property
    def example(self) -> str:
        """The first choice."""
        return next(iter(self.choices))

    def clean(self, value: object) -> str:
        choice = _choice(value, self.options["choices"])
        self._check_index_size(choice)
        return choice

    def from_text(self, text: str) -> str:
        """Any text may be asked for."""
        return text

    def definition_problems(self) -> Iterator[str]:
        """The choices are distinct texts."""
        yield from _choices_problems(self.options)


class MultiSelectField(JsonField):
    """Several of the choices, each once, in the order sent; stored as a JSON list."""

    type = "multi_select"
    label = lazy_gettext("Multiple choice")
    face = Face(WidgetKind.CHOICES, ("contains", "empty", "filled"), "choice", width=18)
    may_be_cut = False  # part of a list cannot be read
    is_list = True
    rule_type = rules.Type.LIST
    known_options = ("choices", "search")
    json_schema: ClassVar[JSONMapping] = {"type": "array", "items": {"type": "string"}}

    @property
    def example(self) -> list[str]:
        """The first choice."""
        return list(self.choices)[:1]

    def sample(self) -> list[str]:
        """The first choice."""
        return self.example

    def texts(self, value: Any) -> list[str]:
        """The choices."""
        found = orjson.loads(value) if isinstance(value, str) else value
        return found or []

    def marked(self, mark: str, number: Callable[[], int]) -> list[str]:
        return [mark]

    def clean(self, value: object) -> list[str]:
        """A list of distinct choices."""
        if not isinstance(value, list):
            raise InvalidValue("invalid_type", "Must be a list of choices.")
        # Longer lists have duplicates, and are not worth a look at each item.
        items = value[: len(self.options["choices"]) + 1]
        choices = [_choice(item, self.options["choices"]) for item in items]
        if len(set(choices)) < len(choices):
            raise InvalidValue("invalid_option", "Must have each choice only once.")
        return choices

    def listed(self, value: str) -> list[str]:
        found: list[str] = orjson.loads(value)
        return found

    def written(self, value: object) -> str:
        """The list as JSON in one line."""
        return json.dumps(value, ensure_ascii=False)

    def shown(self, value: str) -> object:
        return orjson.loads(value)

    @property
    def value_schema(self) -> JSONObject:
        """A list of choices."""
        items = {"type": "string", "enum": self.options["choices"]}
        return {**self.json_schema, "items": items, "uniqueItems": True}

    def definition_problems(self) -> Iterator[str]:
        """The choices are distinct texts."""
        yield from _choices_problems(self.options)


def removed_choices(old: Field | None, new: Field) -> list[str]:
    """The choices of a `select` or `multi_select` that a new definition lacks."""
    if not isinstance(old, SelectField | MultiSelectField):
        return []
    kept = set(new.options["choices"])
    return [choice for choice in old.options["choices"] if choice not in kept]


def _choice(value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise InvalidValue("invalid_type", "A choice must be a text.")
    value = rules.composed(value)
    if value not in choices:
        named = ", ".join(choices[:MAX_NAMED])
        raise InvalidValue(
            "invalid_option",
            f"Must be one of: {named}{', …' if len(choices) > MAX_NAMED else '.'}",
        )
    return value


def _choices_problems(options: JSONMapping) -> Iterator[str]:
    choices = options.get("choices")
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        yield f"choices must be a list of 1 to {MAX_CHOICES} texts."
    elif not all(isinstance(choice, str) and _is_short(choice) for choice in choices):
        yield f"Each choice must be a text of 1 to {LONGEST_CHOICE} characters."
    elif len(set(map(rules.composed, choices))) < len(choices):
        yield "choices must be distinct."


def _is_short(choice: str) -> bool:
    return bool(choice.strip()) and len(choice) <= LONGEST_CHOICE
