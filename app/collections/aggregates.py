"""Functions of several values: what they take, what they give, and their SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.collections.fields import AnyDecimalField, DecimalField, Field, Number, NumberField
from app.rules.elements import CodePoints

NUMERIC = (rules.Type.NUMBER, rules.Type.DECIMAL)
ORDERED = (*NUMERIC, rules.Type.TEXT, rules.Type.DATE, rules.Type.DATETIME)
TAKEN: Mapping[str, tuple[rules.Type, ...]] = {
    "count": (*rules.Type,),
    "sum": NUMERIC,
    "avg": NUMERIC,
    "min": ORDERED,
    "max": ORDERED,
}
"""The types of values that each function takes."""


def field_of(function: str, field: Field, name: str) -> Field:
    """A field for the results of a function of a field's values.

    Sums and extremes of decimals show as many digits as the field; averages those that they have.
    """
    if isinstance(field, DecimalField) and function != "count":
        return AnyDecimalField(name) if function == "avg" else replace(field, name=name)
    return NumberField(name) if function in ("count", "sum", "avg") else type(field)(name)


def expression(function: str, field: Field, column: Any, *, is_computed: bool = False) -> Any:
    """The SQL of a function of a field's values."""
    if function == "count":
        return sa.func.count(column)
    if isinstance(field, DecimalField):
        return _of_decimals(function, column, field_of(function, field, field.name).column_type)
    if function in ARITHMETIC:
        return ARITHMETIC[function](column)
    source = CodePoints(column) if is_computed and isinstance(column.type, sa.Text) else column
    return getattr(sa.func, function)(source, type_=column.type)


def _of_decimals(function: str, column: Any, kind: Any) -> Any:
    if function in ("min", "max"):
        return getattr(sa.func, function)(column, type_=kind)
    if db.connection().dialect.name == "sqlite":
        called = sa.func.atrium_decimal_sum if function == "sum" else sa.func.atrium_decimal_average
        return called(column, type_=kind)
    if function == "sum":
        return sa.func.atrium_decimal_settled(sa.func.sum(column), type_=kind)
    count = sa.cast(sa.func.count(column), sa.Numeric)
    return sa.func.atrium_decimal_divide(sa.func.sum(column), count, type_=kind)


def _sum(column: object) -> object:
    if db.connection().dialect.name == "sqlite":
        return sa.func.atrium_sum(column, type_=Number())
    return sa.func.atrium_number(sa.func.sum(column), type_=Number())


def _average(column: Any) -> object:
    if db.connection().dialect.name == "sqlite":
        return sa.func.atrium_average(column, type_=Number())
    count = sa.cast(sa.func.count(column), sa.Numeric)
    return sa.func.atrium_divide(sa.func.sum(column), count, type_=Number())


ARITHMETIC: Mapping[str, Callable[[Any], Any]] = {"sum": _sum, "avg": _average}
