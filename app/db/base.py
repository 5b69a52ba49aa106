"""The declarative base."""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from app.context import shown_accounts


class Base(DeclarativeBase):
    """The declarative base. Constraint names are fixed, so that errors can be mapped by name."""

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


@sa.event.listens_for(Base, "load", propagate=True)
def _note_account(row: Base, context: object) -> None:
    shown_accounts.note(row.__dict__.get("account_id"))


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """Return an index of those rows that fulfil a condition, on either database."""
    condition = sa.text(where)
    return sa.Index(name, *columns, postgresql_where=condition, sqlite_where=condition)
