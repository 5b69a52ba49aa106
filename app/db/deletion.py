"""Deleting many rows without holding up others."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app.context import tenancy
from app.db.connections import connection
from app.db.transactions import transaction

PURGED_AT_ONCE = 500


def purge(table: Any, *which: Any) -> None:
    """Delete rows of an account's table in short transactions: seen over all, deleted in one."""
    account, *key = table.primary_key
    seen = sa.select(account, *key).where(*which).limit(PURGED_AT_ONCE)
    while rows := connection().execute(seen).all():
        for account_id in {row[0] for row in rows}:
            mine = [row[1:] for row in rows if row[0] == account_id]
            # Asked again: what was changed meanwhile stays.
            chosen = (account == account_id, sa.tuple_(*key).in_(mine), *which)
            with tenancy.in_account(account_id), transaction() as session:
                session.execute(sa.delete(table).where(*chosen))
