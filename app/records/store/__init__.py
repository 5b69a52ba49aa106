"""Statements on collections' tables, all scoped by account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app import db
from app.collections.definitions import Definition
from app.db.types import Text
from app.types import JSONMapping

Row = Mapping[str, Any]
Condition = sa.ColumnElement[bool]
NO_PARAMETERS: JSONMapping = {}
ACCOUNT: Any = sa.bindparam("_account")


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


def is_any_of(column: sa.ColumnElement[Any], values: Sequence[str]) -> Condition:
    """The condition `column IN values`, as one parameter."""
    # Databases limit the number of parameters.
    if db.connection().dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(Text)))
    elements = sa.func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(elements.c.value))
