"""Conditions that several queries share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.operators import custom_op

from app import db, rules
from app.db.types import Text
from app.ids import first_id


def contains_ignoring_case(
    column: sa.SQLColumnExpression[Any], text: str
) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text, in any case."""
    return sa.func.lower(column).contains(text.lower(), autoescape=True)


def has_text(column: sa.SQLColumnExpression[Any], text: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text in either Unicode form, in any case."""
    forms = sorted(rules.spellings([rules.composed(text)]))
    return sa.or_(*(column.icontains(form, autoescape=True) for form in forms))


def is_any_of(column: sa.SQLColumnExpression[Any], values: Sequence[str]) -> sa.ColumnElement[bool]:
    """The condition `column IN values`, as one parameter.

    Databases limit the number of parameters, and drivers keep a statement for each number of them.
    """
    if db.connection().dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(Text)))
    elements = sa.func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(elements.c.value))


def without_index(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The same value, for which SQLite uses no index: without statistics it would use a worse one.

    https://sqlite.org/optoverview.html
    """
    if not db.has_one_writer():
        return column
    return sa.UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def search_key(text: str) -> str:
    """Return the longest ASCII part of a text: databases fold the case of ASCII only."""
    return max(re.findall(r"[\x00-\x7f]+", text), key=len, default=text)


def log_conditions(
    table: sa.FromClause, query: Mapping[str, Any], names: Sequence[str]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of a query of a log: columns by name, `from_date` until `to_date`."""
    for name in names:
        if query.get(name):
            yield table.c[name] == query[name]
    # Ids begin with their time, so the primary key finds the rows.
    if query.get("from_date"):
        yield table.c.id >= first_id(query["from_date"])
    if query.get("to_date"):
        yield table.c.id < first_id(query["to_date"])
