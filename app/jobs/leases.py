"""Work queues in tables: due rows are seen over all accounts, and claimed under their own.

A queue's table has `account_id`, `id`, `due_at` (null: nothing is to be done) and a counter of
claims. Both times of a lease are the database's, so that clocks of worker machines do not matter.
A claim is one statement: on PostgreSQL workers pass over each other's rows (SKIP LOCKED), on
SQLite the write lock puts them in order. The counter tells a worker whose lease ran out from the
one that took over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.context import tenancy
from app.db.functions import database_now


@dataclass(frozen=True)
class Queue:
    """A table that work is claimed from."""

    table: Any
    claims: Any
    """The column that counts how often a row was claimed."""
    waiting: Any = None
    """A condition for rows that are waiting at all; None where `due_at` alone says it."""
    once_taken: Mapping[Any, Any] = field(default_factory=dict)
    """What else a claim sets."""

    def due(self) -> sa.ColumnElement[bool]:
        """The condition for a row that is due by the database's clock."""
        late = self.table.c.due_at <= database_now()
        return late if self.waiting is None else sa.and_(self.waiting, late)


def look(queue: Queue, limit: int, *columns: Any, where: Any = None) -> Sequence[sa.Row[Any]]:
    """Up to `limit` due rows (account_id, id and `columns`), the longest waiting first."""
    return db.connection().execute(look_statement(queue, limit, *columns, where=where)).all()


def look_statement(queue: Queue, limit: int, *columns: Any, where: Any = None) -> sa.Select[Any]:
    """The statement of `look`."""
    table = queue.table
    seen = sa.select(table.c.account_id, table.c.id, *columns).where(queue.due())
    seen = seen if where is None else seen.where(where)
    return seen.order_by(table.c.due_at).limit(limit)


def backlog(queue: Queue) -> tuple[int, float]:
    """How much is due, and for how many seconds the oldest has been."""
    asked = sa.select(sa.func.count(), sa.func.min(queue.table.c.due_at)).where(queue.due())
    number, oldest = db.connection().execute(asked).one()
    return number, max(0.0, (clock.now() - oldest).total_seconds()) if oldest else 0.0


def claim(
    queue: Queue, account_id: str, ids: Sequence[str], seconds: int, *columns: Any
) -> Sequence[sa.Row[Any]]:
    """Take those of an account's rows that are still due, for so many seconds."""
    table = queue.table
    mine = (table.c.account_id == account_id, table.c.id.in_(ids), queue.due())
    free = sa.select(table.c.id).where(*mine).with_for_update(skip_locked=True)
    taken = (
        sa.update(table)
        # The condition stands outside, too: a row may have changed before its lock was taken.
        .where(*mine, table.c.id.in_(free.scalar_subquery()))
        .values({queue.claims: queue.claims + 1, table.c.due_at: database_now(seconds)})
        .values(dict(queue.once_taken))
        .returning(table.c.account_id, table.c.id, queue.claims, *columns)
    )
    with tenancy.in_account(account_id), db.transaction() as session:
        return session.execute(taken).all()
