"""The field type `text`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import re2

from app import rules
from app.collections.fields.face import CHOICE, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue, bounds_problems
from app.types import cached_property
from app.web.languages import lazy_gettext

LONGEST = 1_000_000  # characters, where `max_length` does not say
MAX_EXAMPLE = 60
LINE = 200  # characters that an input of one line takes
SHORT, LONG = Face(WidgetKind.TEXT, compared_in="text"), Face(WidgetKind.AREA, width=40, rank=2)


SILENT = re2.Options()
SILENT.log_errors = False  # else RE2 itself writes the pattern to the log, in a line of no JSON


class TextField(Field):
    """Any string, stored in Unicode's form NFC."""

    type = "text"
    label = lazy_gettext("Text")
    fills_indexes = True
    is_long = True
    names_records = True
    known_options = ("min_length", "max_length", "pattern", "choices", "index", "search")

    @property
    def face(self) -> Face:  # type: ignore[override]
        """One of choices, else a line or an area, as its length may be."""
        if "choices" in self.options:
            return CHOICE
        return SHORT if self.options.get("max_length", LONGEST) <= LINE else LONG

    @cached_property
    def _pattern(self) -> Any:
        return re2.compile(self.options["pattern"], SILENT) if "pattern" in self.options else None

    @property
    def example(self) -> str | None:
        """A choice, or a text within the bounds; None if it must match a pattern."""
        if self.choices:
            return next(iter(self.choices))
        if "pattern" in self.options:
            return None
        text = f"Sample {self.name.replace('_', ' ')}"[
            : self.options.get("max_length", MAX_EXAMPLE)
        ]
        return text.ljust(self.options.get("min_length", 0), ".")

    def sample(self) -> str:
        """A choice, or a word."""
        return next(iter(self.choices), "text")

    def clean(self, value: object) -> str:
        """A string within the options."""
        if not isinstance(value, str):
            raise InvalidValue("invalid_type", "Must be a text.")
        if not value.isascii():
            value = rules.composed(value)
        options = self.options
        if len(value) < options.get("min_length", 0):
            raise InvalidValue(
                "too_short", f"Must have at least {options['min_length']} characters."
            )
        if len(value) > (most := options.get("max_length", LONGEST)):
            raise InvalidValue("too_long", f"Must have at most {most} characters.")
        if self._pattern is not None and not self._pattern.search(value):
            raise InvalidValue("pattern_mismatch", "Does not match the pattern of this field.")
        if "choices" in options and value not in options["choices"]:
            raise InvalidValue(
                "invalid_option", f"Must be one of: {', '.join(options['choices'])}."
            )
        if self.max_bytes is not None:
            self._check_index_size(value)
        return value

    def definition_problems(self) -> Iterator[str]:
        """Lengths are whole numbers, choices are texts, the pattern is one of RE2's."""
        options = {"max_length": LONGEST, **self.options}
        kind = "a whole number, 0 or more"
        yield from bounds_problems(options, "min_length", "max_length", _is_length, kind)
        choices = options.get("choices", [""])
        are_texts = isinstance(choices, list) and all(isinstance(c, str) for c in choices)
        if not choices or not are_texts:
            yield "choices must be a list of texts."
        if "pattern" in options:
            try:
                self._pattern  # noqa: B018 - compiling is the check
            except (re2.error, TypeError):
                yield "pattern must be a regular expression in RE2's syntax."


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
