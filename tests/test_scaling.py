"""The schema can be sharded by account (docs/scaling.md)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from app import db
from app.db.policy import Placement


def is_sharded(table: sa.Table) -> bool:
    """Whether it has rows of accounts."""
    return db.policies()[table.name].placement is Placement.SHARDED


SHARED = {name for name, one in db.policies().items() if one.placement is Placement.SHARED}
TABLES = [t for t in db.Base.metadata.sorted_tables if is_sharded(t)]


def unique_ones(table: sa.Table) -> list[list[str]]:
    """The columns of every unique constraint and index, the primary key first."""
    constraints: list[Any] = [table.primary_key]
    constraints += [one for one in table.constraints if isinstance(one, sa.UniqueConstraint)]
    constraints += [one for one in table.indexes if one.unique]
    return [[column.name for column in one.columns] for one in constraints]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_account_tables_have_account_id_in_every_key(table: sa.Table) -> None:
    assert {columns[0] for columns in unique_ones(table)} == {"account_id"}
    for key in table.foreign_key_constraints:
        columns, target = [column.name for column in key.columns], key.referred_table.name
        assert target in SHARED or columns[0] == "account_id", (columns, target)
        assert key.ondelete != "SET NULL"


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_tables_refer_to_no_account_table(name: str) -> None:
    table = db.Base.metadata.tables[name]
    assert {key.referred_table.name for key in table.foreign_key_constraints} <= SHARED
    assert not any("last_used" in column.name for column in table.columns)
