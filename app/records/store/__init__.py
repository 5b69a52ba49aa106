"""The statements on a collection's table. Every one of them is scoped by account, here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app import db
from app.collections.definition import Definition
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
    inside = [table.c.account_id == account_id] if account_id is not None else []
    return inside if where is None else [*inside, where]


def rows(definition: Definition, found: Iterable[Any]) -> list[Row]:
    """Result rows as dicts by column name."""
    names = tuple(definition.columns)
    return [dict(zip(names, row, strict=True)) for row in found]


def is_any_of(column: sa.Column[Any], values: Sequence[str]) -> Condition:
    """The condition `column IN values`, as one parameter."""
    # There may be more values than a statement takes parameters.
    if db.connection().dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(Text)))
    listed = sa.func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))
