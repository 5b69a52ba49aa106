"""The field type `decimal`: exact numbers of up to 38 digits, such as amounts of money."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from app import rules
from app.collections.fields.face import ORDER, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.rules import values
from app.types import JSONMapping, JSONObject
from app.web.languages import lazy_gettext

MAX_PRECISION, PRECISION, SCALE = 38, 18, 2
LONGEST = 100  # characters of a value, leading zeros included


class Exact(sa.types.TypeDecorator[Decimal]):
    """NUMERIC on PostgreSQL; on SQLite, which has no exact one, a text in the order of decimals.

    What is read has at least `scale` digits behind the point, alike on both.
    """

    impl = sa.Numeric
    cache_ok = True

    def __init__(self, scale: int = 0) -> None:
        super().__init__()
        self.scale = scale

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """The column type on this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.Numeric(asdecimal=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return values.encoded(value)

    process_literal_param = process_bind_param

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        if value is None:
            return None
        exact = value if dialect.name == "postgresql" else values.decoded(value)
        return values.scaled(exact, self.scale)


class DecimalField(Field):
    """An exact decimal; a text in JSON, as doubles would round it."""

    type = "decimal"
    label = lazy_gettext("Decimal")
    face = Face(WidgetKind.NUMBER, ORDER, "number", width=12, rank=0, style="number")
    rule_type = rules.Type.DECIMAL
    known_options = ("precision", "scale", "min", "max", "index")
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "decimal"}

    @property
    def scale(self) -> int:
        """The digits behind the point that values show at least."""
        return int(self.options.get("scale", SCALE))

    @property
    def column_type(self) -> Exact:
        return Exact(self.scale)

    @property
    def example(self) -> str:
        """1, or the nearest bound."""
        low, high = (self._bound(name) for name in ("min", "max"))
        value = Decimal(1 if self._whole_digits else 0)
        if low is not None and value < low:
            value = low
        if high is not None and value > high:
            value = high
        return str(self.shown(value))

    def sample(self) -> str:
        return self.example

    def marked(self, mark: str, number: Callable[[], int]) -> Decimal:
        """A decimal that only this record has."""
        return Decimal(number())

    @property
    def _whole_digits(self) -> int:
        return int(self.options.get("precision", PRECISION)) - self.scale

    def clean(self, value: object) -> Decimal:
        """An exact decimal within the options: of a text, or a whole number."""
        exact = _parsed(value)
        behind, before = self.scale, self._whole_digits
        if -exact.normalize(values.EXACT).as_tuple().exponent > behind:  # type: ignore[operator]
            message = f"Must have at most {behind} digits behind the point."
            raise InvalidValue("too_many_digits", message)
        if exact.copy_abs() >= Decimal(10) ** before:
            message = f"Must have at most {before} digits before the point."
            raise InvalidValue("number_out_of_range", message)
        low, high = self._bound("min"), self._bound("max")
        if low is not None and exact < low:
            raise InvalidValue("number_out_of_range", f"Must be at least {low}.")
        if high is not None and exact > high:
            raise InvalidValue("number_out_of_range", f"Must be at most {high}.")
        return values.scaled(exact, self.scale)

    def _bound(self, name: str) -> Decimal | None:
        return None if (value := self.options.get(name)) is None else _parsed(value)

    def from_text(self, text: str) -> Decimal:
        """A decimal with any number of digits, to compare with."""
        return _parsed(text)

    def shown(self, value: Decimal) -> str:
        """All digits, without an exponent."""
        return format(values.scaled(value, self.scale), "f")

    @property
    def value_schema(self) -> JSONObject:
        before, behind = self._whole_digits, self.scale
        fraction = rf"(\.[0-9]{{1,{behind}}})?" if behind else ""
        pattern = rf"^-?[0-9]{{1,{max(before, 1)}}}{fraction}$"
        return {**self.json_schema, "pattern": pattern}

    @property
    def input_schema(self) -> JSONObject:
        """A text as in answers, or a whole number."""
        return {"anyOf": [self.value_schema, {"type": "integer"}]}

    def definition_problems(self) -> Iterator[str]:
        """Digits within bounds, and bounds in order that are values themselves."""
        precision, scale = (
            self.options.get(name, default)
            for name, default in (("precision", PRECISION), ("scale", SCALE))
        )
        if type(precision) is not int or not 1 <= precision <= MAX_PRECISION:
            yield f"precision must be a whole number from 1 to {MAX_PRECISION}."
            return
        if type(scale) is not int or not 0 <= scale <= precision:
            yield "scale must be a whole number from 0 to precision."
            return
        free = DecimalField(self.name, options={"precision": precision, "scale": scale})
        bounds = dict[str, Decimal]()
        for name in ("min", "max"):
            if name in self.options:
                try:
                    bounds[name] = free.clean(self.options[name])
                except InvalidValue as error:
                    yield f"{name} is not valid: {error}"
        if len(bounds) == 2 and bounds["min"] > bounds["max"]:
            yield "min is greater than max."


class AnyDecimalField(DecimalField):
    """What an expression or an average gives: any number of digits, and none that it has not."""

    @property
    def scale(self) -> int:
        return 0

    def clean(self, value: object) -> Decimal:
        """A decimal without bounds."""
        return values.scaled(_parsed(value))

    @property
    def value_schema(self) -> JSONObject:
        return dict(self.json_schema)


def _parsed(value: object) -> Decimal:
    if type(value) is int:
        return Decimal(value)
    if isinstance(value, Decimal) and value.is_finite():  # of an extension
        return value
    if isinstance(value, str) and len(value) <= LONGEST and values.DECIMAL.fullmatch(value):
        return Decimal(value)
    message = 'Must be a decimal as a text, such as "12.50", or a whole number.'
    raise InvalidValue("invalid_type", message)
