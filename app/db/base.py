"""The declarative base."""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from app.context import shown_accounts
from app.db.policy import TablePolicy


class Base(DeclarativeBase):
    """The declarative base. Constraint names are fixed, so that errors can be mapped by name.

    A model declares what is done with its rows in `__policy__`. Raises TypeError without one.
    """

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __table__: ClassVar[sa.Table]
    __policy__: ClassVar[TablePolicy]

    def __init_subclass__(cls, **options: Any) -> None:
        own = vars(cls)
        if "__tablename__" in own and "__policy__" not in own:
            raise TypeError(f"{cls.__name__} lacks its __policy__: docs/development.md#add-a-table")
        super().__init_subclass__(**options)
        if "__tablename__" in own:
            cls.__policy__.check(cls.__table__)
            cls.__table__.info["policy"] = cls.__policy__


def policies() -> dict[str, TablePolicy]:
    """Return the policy of each table by its name."""
    return {name: table.info["policy"] for name, table in Base.metadata.tables.items()}


def policy_of(table: str) -> TablePolicy | None:
    """Return the policy of a table; None for that of a collection, and for what is no table."""
    found = Base.metadata.tables.get(table)
    return None if found is None else found.info["policy"]


@sa.event.listens_for(Base, "load", propagate=True)
def _note_account(row: Base, context: object) -> None:
    shown_accounts.note(row.__dict__.get("account_id"))


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """Return an index of those rows that fulfil a condition, on either database."""
    condition = sa.text(where)
    return sa.Index(name, *columns, postgresql_where=condition, sqlite_where=condition)
