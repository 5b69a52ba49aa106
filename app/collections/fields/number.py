"""The field type `number`: whole numbers of 64 bits, and doubles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from app import rules
from app.collections.fields.face import ORDER, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue, bounds_problems
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.web.languages import lazy_gettext

SMALLEST, LARGEST = -(2**63), 2**63 - 1
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def plain_number(value: Any) -> Any:
    """A stored number as JSON shows it."""
    if value is None or type(value) is int:
        return value
    if value == value.__trunc__() and SMALLEST <= value <= LARGEST:
        return int(value)
    return float(value) if isinstance(value, Decimal) else value


class Number(sa.types.TypeDecorator[Any]):
    """Whole numbers of 64 bits exactly, others as IEEE doubles; 1 and 1.0 are one value."""

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """The column type on this database."""
        # SQLite's NUMERIC affinity keeps integers and doubles apart by value, as wanted.
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.Numeric(asdecimal=True))
        return dialect.type_descriptor(sa.Numeric(asdecimal=False))

    def bind_processor(self, dialect: Dialect) -> Any:
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Decimals become whole numbers or doubles."""
        return plain_number


class NumberField(Field):
    """A number, not a boolean."""

    type = "number"
    label = lazy_gettext("Number")
    face = Face(WidgetKind.NUMBER, ORDER, "number", width=10, rank=0, style="number")
    column_type = Number()
    rule_type = rules.Type.NUMBER
    known_options = ("min", "max", "integer", "index")
    json_schema: ClassVar[JSONMapping] = {"type": "number"}

    @property
    def example(self) -> int | float:
        """1, or the nearest number within the bounds."""
        low, high = self.options.get("min"), self.options.get("max")
        value: int | float = low if low is not None else min(1, high) if high is not None else 1
        return int(-(-value // 1)) if self.options.get("integer") else value

    def sample(self) -> int:
        """1."""
        return 1

    def marked(self, mark: str, number: Callable[[], int]) -> int:
        """A number that only this record has."""
        return number()

    def clean(self, value: object) -> int | float:
        """A finite number within the options."""
        if type(value) is serialization.Rounded:
            if self.options.get("integer"):
                raise InvalidValue("not_integer", "Must be a whole number.")
            value = float(value)
        if type(value) not in (int, float):
            raise InvalidValue("invalid_type", "Must be a number.")
        if not _is_number(value):
            raise InvalidValue("number_out_of_range", serialization.OUT_OF_RANGE)
        number: int | float = plain_number(value)
        if self.options.get("integer") and not isinstance(number, int):
            raise InvalidValue("not_integer", "Must be a whole number.")
        low, high = self.options.get("min"), self.options.get("max")
        if low is not None and number < low:
            raise InvalidValue("number_out_of_range", f"Must be at least {low}.")
        if high is not None and number > high:
            raise InvalidValue("number_out_of_range", f"Must be at most {high}.")
        return number

    def from_text(self, text: str) -> int | float:
        """A number written out."""
        if not NUMBER.fullmatch(text):
            raise InvalidValue("invalid_type", "Must be a number.")
        value = serialization.number(text)
        if not math.isfinite(value):
            raise InvalidValue("number_out_of_range", serialization.OUT_OF_RANGE)
        if self.options.get("integer") and type(value) is serialization.Rounded:
            raise InvalidValue("not_integer", "Must be a whole number.")
        number: int | float = plain_number(serialization.without_rounding(value))
        return number

    def parse(self, text: str, *, infinite: bool = False) -> int | float:
        """As `from_text`."""
        return self.from_text(text)

    @property
    def value_schema(self) -> JSONObject:
        """That of a whole number, if it holds only such."""
        schema = super().value_schema
        return {**schema, "type": "integer"} if self.options.get("integer") else schema

    def definition_problems(self) -> Iterator[str]:
        """Bounds are numbers in order."""
        kind = "a number; a whole one of at most 64 bits"
        yield from bounds_problems(self.options, "min", "max", _is_number, kind)
        if not isinstance(self.options.get("integer", False), bool):
            yield "integer must be true or false."


def _is_number(value: object) -> bool:
    if type(value) is int:  # one of many digits is none that isfinite takes
        return SMALLEST <= value <= LARGEST
    return type(value) is float and math.isfinite(value)
