"""The newest changes of an account, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit.append import DELETE
from app.audit.entries import CHANGES


def changes(account_id: str | None, limit: int) -> Sequence[sa.Row[Any]]:
    """The newest changes of an account (None: of all), with the actor's email address."""
    conditions = [] if account_id is None else [CHANGES.c.account_id == account_id]
    order = CHANGES.c.occurred_at.desc(), CHANGES.c.first_id.desc()
    newest = CHANGES.select().where(*conditions).order_by(*order).limit(limit)
    return db.connection().execute(newest).all()


def is_deleted(account_id: str | None, table_name: str, record_id: str) -> bool:
    """Whether the audit log has a deletion of this row, in an account (None: in any)."""
    conditions = [] if account_id is None else [CHANGES.c.account_id == account_id]
    values = {"table_name": table_name, "record_id": record_id, "operation": DELETE}
    exists = sa.exists().where(
        *conditions, *(CHANGES.c[name] == value for name, value in values.items())
    )
    return bool(db.connection().scalar(sa.select(exists)))
