"""Filters, built from fields and values: `(F.views >= 10) & ~F.live`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

Value = str | bool | int | float | Decimal | date | datetime | UUID | None
NAME = re.compile(r"@?[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
COLLECTION = re.compile("[A-Za-z][A-Za-z0-9_]*", re.ASCII)
FLAG = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
NO_TEXT = re.compile("[\0\ud800-\udfff]")


class Condition:
    """A condition of the filter language; `str()` returns its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Condition({self._text!r})"

    def __and__(self, other: Condition) -> Condition:
        return Condition(f"({self}) && ({other})")

    def __or__(self, other: Condition) -> Condition:
        return Condition(f"({self}) || ({other})")

    def __invert__(self) -> Condition:
        return Condition(f"!({self})")

    def __bool__(self) -> bool:
        raise TypeError("Combine conditions with &, | and ~ instead of and, or and not.")


class Field(Condition):
    """A field, dotted behind references; one that holds a boolean is a condition by itself."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a field.")
        super().__init__(name)

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Field:
        return Field(f"{self}.{name}")

    def __eq__(self, value: Value | Field) -> Condition:  # type: ignore[override]
        return self._compare("=", value)

    def __ne__(self, value: Value | Field) -> Condition:  # type: ignore[override]
        return self._compare("!=", value)

    def __lt__(self, value: Value | Field) -> Condition:
        return self._compare("<", value)

    def __le__(self, value: Value | Field) -> Condition:
        return self._compare("<=", value)

    def __gt__(self, value: Value | Field) -> Condition:
        return self._compare(">", value)

    def __ge__(self, value: Value | Field) -> Condition:
        return self._compare(">=", value)

    def like(self, pattern: str) -> Condition:
        """Whether the whole text matches, ignoring ASCII case; `%` matches anything."""
        return self._compare("~", pattern)

    def not_like(self, pattern: str) -> Condition:
        """Whether the text does not match a pattern."""
        return self._compare("!~", pattern)

    def in_(self, values: Iterable[Value]) -> Condition:
        """Whether the value is one of these."""
        return Condition(f"{self} IN [{', '.join(map(literal, values))}]")

    def not_in(self, values: Iterable[Value]) -> Condition:
        """Whether the value is none of these."""
        return Condition(f"{self} NOT IN [{', '.join(map(literal, values))}]")

    def contains(self, value: str) -> Condition:
        """Whether a list, such as a `multi_select` or `text_list`, has the value."""
        return Condition(f"@contains({self}, {literal(value)})")

    def is_null(self) -> Condition:
        """Whether there is no value."""
        return self._compare("=", None)

    def is_not_null(self) -> Condition:
        """Whether there is a value."""
        return self._compare("!=", None)

    def _compare(self, operator: str, value: Value | Field) -> Condition:
        text = str(value) if isinstance(value, Field) else literal(value)
        return Condition(f"{self} {operator} {text}")


class Count(Field):
    """The number of records of a collection that meet a condition, to compare."""

    def __init__(self, collection: str, condition: Condition) -> None:
        Condition.__init__(self, f"@count({_collection(collection)}, {condition})")


def any_of(collection: str, condition: Condition) -> Condition:
    """Whether a record of a collection that the caller may list meets a condition.

    Inside, `F.x` is a field of that collection, and `F["@record.x"]` one of the filtered record.
    """
    return Condition(f"@any({_collection(collection)}, {condition})")


def count_of(collection: str, condition: Condition) -> Field:
    """The number of records that `any_of` would find, to compare: `count_of(...) >= 2`."""
    return Count(collection, condition)


def flag(name: str) -> Condition:
    """Whether the account has a flag, by its plan or beside it.

    `F["@account.plan"]` is its plan.
    """
    if not FLAG.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a flag.")
    return Condition(f"@flag({literal(name)})")


def _collection(name: str) -> str:
    if not COLLECTION.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a collection.")
    return name


class Fields:
    """Fields by name: `F.title`, or `F["title"]` if the name is also one of Python's."""

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return Field(name)

    def __getitem__(self, name: str) -> Field:
        return Field(name)


F = Fields()


def literal(value: Value) -> str:
    """Return a value as the filter language writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return _number(value)
    return _quoted(_text(value))


def _number(value: float | Decimal) -> str:
    if not math.isfinite(value):
        raise ValueError(f"A filter has no number {value}.")
    return format(value, "d") if isinstance(value, int) else str(value)


def _text(value: str | date | datetime | UUID) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone.")
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def _quoted(text: str) -> str:
    if NO_TEXT.search(text):
        raise ValueError("A text has no NUL and no lone surrogates.")
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", text))
