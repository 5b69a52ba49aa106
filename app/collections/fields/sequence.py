"""The field type `sequence`: a number per account that the service gives each new record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import sqlalchemy as sa

from app import rules
from app.collections.fields.face import Face
from app.collections.fields.field import Field, InvalidValue
from app.web.languages import lazy_gettext

MAX_PREFIX = 40
MAX_DIGITS = 15  # of what `options.digits` and imports say; counting on, a number has a few more
STORED = re.compile(r"(.*[^0-9])?([0-9]{1,18})", re.DOTALL)
DIGITS: Any = sa.literal_column("'0123456789'")
ONE: Any = sa.literal_column("1", sa.Integer)
NOTHING: Any = sa.literal_column("''")


class SequenceField(Field):
    """A text that ends in a number, as `INC-00042`; ordered by the number."""

    type = "sequence"
    label = lazy_gettext("Sequence")
    face = Face(width=14, rank=0, style="whole")
    known_options = ("prefix", "digits", "search")
    takes_default = takes_expression = False
    is_written: ClassVar[bool] = False
    is_unique: ClassVar[bool] = True
    has_order: ClassVar[bool] = True

    @property
    def prefix(self) -> str:
        prefix: str = self.options.get("prefix", "")
        return prefix

    def text(self, number: int) -> str:
        """The value with a number."""
        return f"{self.prefix}{number:0{self.options.get('digits', 1)}d}"

    def number(self, value: str) -> int:
        """The number of a value, whatever prefix it has."""
        match = STORED.fullmatch(value)
        return int(match[2]) if match else 0

    def sample(self) -> str:
        """The first value."""
        return self.text(1)

    def marked(self, mark: str, number: Callable[[], int]) -> str:
        """The mark with a number that only this record has."""
        return f"{mark}-{number()}"

    def clean(self, value: object) -> str:
        """A value as it is stored, also one with a former prefix."""
        if not isinstance(value, str) or not STORED.fullmatch(value):
            raise InvalidValue("invalid_type", f"Must be a text such as {self.text(42)}.")
        return rules.composed(value)

    def given(self, value: object) -> str:
        """The value that an import sets: a number, with the prefix or without. Raises InvalidValue.

        Written as the service writes it, so that one number is one value.
        """
        text = rules.composed(str(value)).removeprefix(self.prefix)
        is_text = isinstance(value, str | int) and not isinstance(value, bool)
        if not is_text or not re.fullmatch(f"[0-9]{{1,{MAX_DIGITS}}}", text) or not int(text):
            raise InvalidValue("invalid_type", f"Must be a text such as {self.text(42)}.")
        return self.text(int(text))

    def definition_problems(self) -> Iterator[str]:
        """A prefix is a short text that does not run into the number."""
        prefix, digits = self.options.get("prefix", ""), self.options.get("digits", 1)
        if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX or not prefix.isprintable():
            yield f"prefix must be a text of at most {MAX_PREFIX} characters in one line."
        elif re.search("[0-9]$", prefix):
            yield "prefix must not end in a digit, which the number would continue."
        if type(digits) is not int or not 1 <= digits <= MAX_DIGITS:
            yield f"digits must be a whole number from 1 to {MAX_DIGITS}."

    def sort_expression(self, column: Any) -> Any:
        """The number, written out without parameters, so that the index of it serves."""
        without: sa.ColumnElement[Any] = sa.func.length(sa.func.rtrim(column, DIGITS)) + ONE
        digits = sa.func.nullif(sa.func.substr(column, without), NOTHING)
        return sa.cast(digits, sa.BigInteger)

    def sort_value(self, value: Any) -> object:
        """The number."""
        return self.number(value)
