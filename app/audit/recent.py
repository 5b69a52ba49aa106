"""The newest changes of an account, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit import sealing
from app.audit.append import DELETE
from app.audit.entries import CHANGES
from app.db import counts


def changes(account_id: str | None, limit: int) -> Sequence[sa.Row[Any]]:
    """The newest changes of an account (None: of all), with the actor's email address."""
    sealing.settle_for_list(account_id)
    conditions = [] if account_id is None else [CHANGES.c.account_id == account_id]
    order = CHANGES.c.occurred_at.desc(), CHANGES.c.first_id.desc()
    newest = CHANGES.select().where(*conditions).order_by(*order).limit(limit)
    return db.connection().execute(newest).all()


def select_days(account_id: str | None, since: datetime, limit: int | None) -> Any:
    """Select the day and operation of the newest changes of an account (None: of all)."""
    sealing.settle_for_list(account_id)
    occurred_at, kind = CHANGES.c.occurred_at, CHANGES.c.operation.label("kind")
    query = sa.select(counts.day(occurred_at), kind, sa.literal("").label("source"))
    if account_id is not None:
        query = query.where(CHANGES.c.account_id == account_id)
    newest = query.where(occurred_at >= since).order_by(
        occurred_at.desc(), CHANGES.c.first_id.desc()
    )
    return newest.limit(limit)


def is_deleted(account_id: str | None, table_name: str, record_id: str) -> bool:
    """Whether the audit log has a deletion of this row, in an account (None: in any)."""
    sealing.settle_for_list(account_id)
    conditions = [] if account_id is None else [CHANGES.c.account_id == account_id]
    values = {"table_name": table_name, "record_id": record_id, "operation": DELETE}
    exists = sa.exists().where(
        *conditions, *(CHANGES.c[name] == value for name, value in values.items())
    )
    return bool(db.connection().scalar(sa.select(exists)))
