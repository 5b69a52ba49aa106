"""Deletes many rows in short transactions."""

from __future__ import annotations

import sqlalchemy as sa

from app.context import tenancy
from app.db.session import connection
from app.db.transactions import transaction

BATCH_ROWS = 500


def purge(table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
    """Delete rows of a tenant table: found over all accounts, deleted account by account."""
    account, *key = table.primary_key
    batch = sa.select(account, *key).where(*where).limit(BATCH_ROWS)
    while rows := connection().execute(batch).all():
        for account_id in {row[0] for row in rows}:
            keys = [row[1:] for row in rows if row[0] == account_id]
            # The condition stands here, too: rows changed meanwhile stay.
            own = (account == account_id, sa.tuple_(*key).in_(keys), *where)
            with tenancy.in_account(account_id), transaction() as session:
                session.execute(sa.delete(table).where(*own))
