"""The newest changes of an account: what was changed and by whom, without any value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit.append import DELETE
from app.audit.entries import CHANGES, LOG


def changes(account_id: str | None, limit: int) -> Sequence[Any]:
    """The newest ones of an account, or of all (None)."""
    mine = [] if account_id is None else [CHANGES.c.account_id == account_id]
    newest = CHANGES.c.occurred_at.desc(), CHANGES.c.first_id.desc()
    found = CHANGES.select().where(*mine).order_by(*newest).limit(limit).subquery()
    first = (LOG.c.account_id == found.c.account_id, LOG.c.id == found.c.first_id)
    told = sa.select(found, LOG.c.user_email).join(LOG, sa.and_(*first))
    ordered = told.order_by(found.c.occurred_at.desc(), found.c.first_id.desc())
    return db.connection().execute(ordered).all()


def is_deleted(account_id: str | None, table_name: str, record_id: str) -> bool:
    """Whether a row of an account, or of any (None), was deleted, as far as it was audited."""
    mine = [] if account_id is None else [CHANGES.c.account_id == account_id]
    told = {"table_name": table_name, "record_id": record_id, "operation": DELETE}
    which = sa.exists().where(*mine, *(CHANGES.c[name] == value for name, value in told.items()))
    return bool(db.connection().scalar(sa.select(which)))
