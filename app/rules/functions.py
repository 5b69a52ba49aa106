"""The functions of the language: what each takes and gives, in Python and in SQL.

To add one: write it in `values.py` for values that are there, list it here, and give PostgreSQL
the same in a migration, unless both databases have it by themselves (then name it in `sql.py`).
`tests/rules/` finds it by this list and compares the back ends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.rules import values
from app.rules.nodes import Type

TEXT, NUMBER, BOOLEAN, DATETIME = Type.TEXT, Type.NUMBER, Type.BOOLEAN, Type.DATETIME


@dataclass(frozen=True)
class Function:
    """A function that is null where an argument is null."""

    parameters: tuple[Type, ...]
    result: Type
    python: Callable[..., object]
    optional: int = 0
    """The number of last parameters that may be left out."""
    unit: bool = False
    """Whether the last parameter is one of the units of time, written out."""
    decimal: Callable[..., object] | None = None
    """The same of a decimal in the place of its first number, which gives a decimal."""


PLAIN = {
    "upper": Function((TEXT,), TEXT, values.upper),
    "lower": Function((TEXT,), TEXT, values.lower),
    "trim": Function((TEXT,), TEXT, values.trim),
    "length": Function((TEXT,), NUMBER, len),
    "substring": Function((TEXT, NUMBER, NUMBER), TEXT, values.substring, optional=1),
    "round": Function(
        (NUMBER, NUMBER), NUMBER, values.round_half_away, 1, decimal=values.round_decimal
    ),
    "abs": Function((NUMBER,), NUMBER, values.absolute, decimal=values.absolute_decimal),
    "ceil": Function((NUMBER,), NUMBER, values.ceiling, decimal=values.ceil_decimal),
    "floor": Function((NUMBER,), NUMBER, values.floor, decimal=values.floor_decimal),
    "date_diff": Function((DATETIME, DATETIME, TEXT), NUMBER, values.date_diff, unit=True),
    "date_add": Function((DATETIME, NUMBER, TEXT), DATETIME, values.date_add, unit=True),
}
# Those that look at null, or choose: the checker, the evaluator and the SQL know each by name.
SPECIAL = ("@contains", "@changed", "concat", "if", "coalesce", "nullif", "now", "decimal")
CALLERS = (
    *("@owns_record", "@has_role", "@has_any_role", "@has_group", "@is_superadmin"),
    "@flag",
)
ARITHMETIC = {
    "+": values.add,
    "-": values.subtract,
    "*": values.multiply,
    "/": values.divide,
    "%": values.remainder,
}
OF_DECIMALS = {
    "+": values.add_decimals,
    "-": values.subtract_decimals,
    "*": values.multiply_decimals,
    "/": values.divide_decimals,
    "%": values.remainder_decimals,
}
