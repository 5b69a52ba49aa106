"""Statements on collections' tables, all scoped by account, with limits of size.

Long values are measured before they are read: texts and JSON may be as large as a body each, and a
page has a hundred records. A statement reads only the values that cannot be too much together, and
says of each row how much it has; what was left out is read in a second one, if the whole is not too
much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from app.collections.definitions import Definition
from app.errors import AnswerTooLarge
from app.types import JSONMapping
from app.web.serialization import dumps

Row = Mapping[str, Any]
Condition = sa.ColumnElement[bool]
NO_PARAMETERS: JSONMapping = {}
ACCOUNT: Any = sa.bindparam("_account")
LARGEST_ANSWER = 32 * 2**20  # bytes
ROOM: object = sa.bindparam("_room", type_=sa.BigInteger)


def scope(
    definition: Definition, account_id: str | None, where: Condition | None = None
) -> list[Condition]:
    """The WHERE conditions of one account (None: of all accounts) and of an access."""
    table = definition.table
    conditions = [table.c.account_id == account_id] if account_id is not None else []
    return conditions if where is None else [*conditions, where]


def rows(definition: Definition, result: Iterable[Any]) -> list[Row]:
    """Result rows as dicts by column name."""
    names = tuple(definition.columns)
    return [dict(zip(names, row, strict=True)) for row in result]


class Octets(FunctionElement[int]):
    """The bytes of a text; PostgreSQL knows them without reading it."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "atrium_octets"


@compiles(Octets)
def _octets(element: Octets, compiler: SQLCompiler, **options: object) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(Octets, "sqlite")
def _octets_of_blob(element: Octets, compiler: SQLCompiler, **options: object) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


class SizeLimit:
    """Counts down the bytes that an answer may still have."""

    def __init__(self) -> None:
        self._left = LARGEST_ANSWER

    def take(self, size: int) -> None:
        """Subtract `size`. Raises AnswerTooLarge if less is left."""
        self._left -= size
        if self._left < 0:
            raise AnswerTooLarge


def long_names(definition: Definition, wanted: Iterable[str]) -> list[str]:
    """The names of fields with long values."""
    return [name for name in wanted if definition.columns[name].like.is_long]


def measured(
    definition: Definition, columns: Sequence[Any], wanted: frozenset[str], cut: int | None = None
) -> list[Any]:
    """The columns without long values of unwanted fields, guarded, or cut to so many characters."""
    # Kept, as building them took a quarter of a filtered list's time.
    return definition.memo.get(_measured, definition, tuple(columns), wanted, cut)


def _measured(
    definition: Definition, columns: Sequence[Any], wanted: frozenset[str], cut: int | None
) -> list[Any]:
    result, long = [], []
    for column, (name, expression) in zip(columns, definition.expressions.items(), strict=True):
        is_read, field = name in wanted, definition.columns[name].like
        is_cut = cut is not None and field.may_be_cut
        if field.is_long and (is_cut or not is_read):
            value: object = sa.func.substr(expression, 1, cut) if is_read else sa.null()
            column = sa.type_coerce(value, expression.type).label(column.name)
            is_read = False
        result.append(column)
        long.append(is_read and field.is_long)
    return guarded(result, long)


def guarded(columns: Sequence[Any], long: Sequence[bool]) -> list[Any]:
    """The columns, `long` ones null beyond `_room` bytes, and the sum of the bytes of these."""
    result, octets = [], []
    for column, is_long in zip(columns, long, strict=True):
        value = column.element if isinstance(column, sa.Label) else column
        size = Octets(value)
        guarded_column = sa.type_coerce(sa.case((size <= ROOM, value)), value.type).label(
            column.name
        )
        result.append(guarded_column if is_long else column)
        octets += [sa.func.coalesce(size, 0)] if is_long else []
    total: Any = sum(octets[1:], octets[0]) if octets else sa.literal_column("0")
    return [*result, total.label("_size")]


def room_for(values: int) -> int:
    """The bytes that each of this many values may have within the limit."""
    return LARGEST_ANSWER // max(values, 1)


def limit_size(items: Iterable[object]) -> list[orjson.Fragment]:
    """The items as JSON. Raises AnswerTooLarge as soon as they exceed the limit."""
    room, found = SizeLimit(), []
    for item in items:
        text = dumps(item)
        room.take(len(text))
        found.append(orjson.Fragment(text))
    return found
