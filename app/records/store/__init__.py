"""Statements on collections' tables, all scoped by account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from app.collections.definitions import Definition
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
