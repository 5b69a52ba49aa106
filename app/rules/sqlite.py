"""The functions that the language needs and SQLite lacks, registered on each connection."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from app.rules import program, values
from app.rules.cost import MAX_PATTERN
from app.rules.functions import ARITHMETIC, OF_DECIMALS, PLAIN
from app.rules.sql import ARITHMETIC as NAMES
from app.rules.sql import NATIVE


def register(connection: sqlite3.Connection) -> None:
    """Add the functions that the SQL of expressions calls."""
    given: dict[str, tuple[Callable[..., object], int]] = {
        NAMES[sign]: (python, 2) for sign, python in ARITHMETIC.items()
    }
    for name, function in PLAIN.items():
        if name not in NATIVE:
            given[name] = (function.python, len(function.parameters))
        if function.decimal:
            given[f"decimal_{name}"] = (_exact(function.decimal, 1), len(function.parameters))
    for sign, of_decimals in OF_DECIMALS.items():
        given[f"decimal_{NAMES[sign]}"] = (_exact(of_decimals, 2), 2)
    given["decimal"] = (_exact(values.as_decimal, 0), 1)
    given["decimal_plain"] = (_exact(values.plain, 1), 1)
    given["plain"] = (values.plain, 1)
    given["date_diff"] = (_date_diff, 3)
    given["date_add"] = (_date_add, 3)
    given["matches"] = (_matches, 2)
    given["contains"] = (values.contains, 2)
    for name, (python, count) in given.items():
        connection.create_function(f"atrium_{name}", count, _strict(python), deterministic=True)
    connection.create_function("atrium_values", -1, _values, deterministic=True)
    connection.create_function("atrium_expression", -1, _expression, deterministic=True)
    connection.create_function("atrium_group_id", -1, _group_id, deterministic=True)
    connection.create_aggregate("atrium_sum", 1, _Sum)
    connection.create_aggregate("atrium_average", 1, _Average)
    connection.create_aggregate("atrium_decimal_sum", 1, _DecimalSum)
    connection.create_aggregate("atrium_decimal_average", 1, _DecimalAverage)


class _Sum:
    """The sum of numbers as they are written; null of none."""

    def __init__(self) -> None:
        self.total, self.count = Decimal(0), 0

    def step(self, number: Any) -> None:
        if number is not None:
            self.total = values.EXACT.add(self.total, values.decimal(number))
            self.count += 1

    def finalize(self) -> Any:
        return values.nearest(self.total) if self.count else None


class _Average(_Sum):
    """The nearest number to the sum by the count."""

    def finalize(self) -> Any:
        if not self.count:
            return None
        return values.nearest(values.QUOTIENT.divide(self.total, Decimal(self.count)))


class _DecimalSum(_Sum):
    """The sum of decimals."""

    def step(self, number: Any) -> None:
        if number is not None:
            self.total = values.EXACT.add(self.total, values.decoded(number))
            self.count += 1

    def finalize(self) -> Any:
        return _stored(values.settled(self.total)) if self.count else None


class _DecimalAverage(_DecimalSum):
    """The sum by the count."""

    def finalize(self) -> Any:
        if not self.count:
            return None
        return _stored(values.divide_decimals(self.total, Decimal(self.count)))


def _exact(python: Callable[..., object], decimals: int) -> Callable[..., object]:
    """A function of which the first arguments are decimals, as SQLite stores them."""

    def call(*arguments: Any) -> object:
        return _stored(python(*map(values.decoded, arguments[:decimals]), *arguments[decimals:]))

    return call


def _stored(value: object) -> object:
    return values.encoded(value) if isinstance(value, Decimal) else value


def _strict(python: Callable[..., object]) -> Callable[..., Any]:
    def call(*arguments: object) -> object:
        return None if None in arguments else python(*arguments)

    return call


def _matches(text: str, pattern: str) -> bool:
    return values.matches(text, pattern[:MAX_PATTERN])


def _date_diff(left: str, right: str, unit: str) -> object:
    return values.date_diff(values.moment(left), values.moment(right), unit)


def _date_add(start: str, amount: values.Number, unit: str) -> str | None:
    found = values.date_add(values.moment(start), amount, unit)
    return program.stored(found) if found else None


def _group_id(*texts: str | None) -> str:
    """An id made of texts; as PostgreSQL makes it of `jsonb_build_array`."""
    text = json.dumps(texts, ensure_ascii=False)
    return str(UUID(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()))


def _values(*leaves: object) -> str:
    return json.dumps(leaves)


def _expression(text: str, *groups: str) -> Any:
    leaves = [leaf for group in groups for leaf in json.loads(group)]
    return program.parse_program(text).run(leaves)
