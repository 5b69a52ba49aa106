"""Work queues in tables: find due rows over all accounts, claim them account by account.

A queue's table has `account_id`, `id`, `due_at` (null: nothing to do) and a counter of claims.
Leases use the database's clock, so clocks of worker machines do not matter. A claim is one
statement: on PostgreSQL workers skip each other's rows (SKIP LOCKED), on SQLite the write lock
orders them. The counter is a fencing token: a worker whose lease expired cannot overwrite the work
of the one that took over (`change`, `held`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.context import tenancy
from app.db import filters
from app.db.functions import database_now
from app.db.types import UtcDateTime

Column = sa.SQLColumnExpression[Any]
Where = sa.ColumnElement[bool] | None


@dataclass(frozen=True)
class Queue:
    """A table that workers claim rows from."""

    table: sa.Table
    claims: sa.Column[int]
    """Counts the claims of a row."""
    pending: sa.ColumnElement[bool] | None = None
    """The condition for pending rows; None if `due_at` alone decides."""
    on_claim: Mapping[sa.Column[Any], object] = field(default_factory=dict)
    """Further values that a claim sets."""
    in_work: sa.ColumnElement[bool] | None = None
    """The condition for rows whose work is not over; None if the claim alone decides."""

    def due(self) -> sa.ColumnElement[bool]:
        """Return the condition for due rows, by the database's clock."""
        due = self.table.c.due_at <= database_now()
        return due if self.pending is None else sa.and_(self.pending, due)


def find_due(
    queue: Queue, limit: int, *columns: Column, where: Where = None
) -> Sequence[sa.Row[Any]]:
    """Return up to `limit` due rows (account_id, id and `columns`), oldest first."""
    return db.connection().execute(due_statement(queue, limit, *columns, where=where)).all()


def due_statement(
    queue: Queue, limit: int, *columns: Column, where: Where = None
) -> sa.Select[Any]:
    """Return the statement of `find_due`."""
    table = queue.table
    rows = sa.select(table.c.account_id, table.c.id, *columns).where(queue.due())
    rows = rows if where is None else rows.where(where)
    return rows.order_by(table.c.due_at).limit(limit)


def seconds_to_next(queue: Queue, where: Where = None) -> float:
    """Return the seconds until the next pending row is due, by the database's clock."""
    pending = [one for one in (queue.pending, where) if one is not None]
    return seconds_until(queue.table.c.due_at, *pending)


def seconds_until(time: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> float:
    """Return the seconds until the earliest time of a column; infinite if there is none."""
    # No aggregate: Citus sends this as it is.
    now = sa.type_coerce(database_now(), UtcDateTime())
    rows = sa.select(time, now).where(time.is_not(None), *conditions).order_by(time).limit(1)
    first = db.connection().execute(rows).first()
    return (first[0] - first[1]).total_seconds() if first else math.inf


def accounts_due(queue: Queue) -> list[tuple[str]]:
    """Return the ids of all accounts with due rows."""
    accounts = sa.select(queue.table.c.account_id).where(queue.due()).distinct()
    return [(account_id,) for account_id in db.connection().scalars(accounts)]


def backlog(queue: Queue) -> tuple[int, float]:
    """Return the number of due rows, and the age of the oldest in seconds."""
    backlog = sa.select(sa.func.count(), sa.func.min(queue.table.c.due_at)).where(queue.due())
    number, oldest = db.connection().execute(backlog).one()
    return number, max(0.0, (clock.now() - oldest).total_seconds()) if oldest else 0.0


def claim(
    queue: Queue, account_id: str, ids: Sequence[str], seconds: int, *columns: Column
) -> Sequence[sa.Row[Any]]:
    """Claim those of an account's rows that are still due, with a lease of this many seconds."""
    table = queue.table
    due = (table.c.account_id == account_id, filters.is_any_of(table.c.id, ids), queue.due())
    unlocked = sa.select(table.c.id).where(*due).with_for_update(skip_locked=True)
    claimed = (
        sa.update(table)
        # The condition is repeated: a row may have changed before its lock was taken.
        .where(*due, table.c.id.in_(unlocked.scalar_subquery()))
        .values({queue.claims: queue.claims + 1, table.c.due_at: database_now(seconds)})
        .values(dict(queue.on_claim))
        .returning(table.c.account_id, table.c.id, queue.claims, *columns)
    )
    with tenancy.in_account(account_id), db.transaction() as session:
        return session.execute(claimed).all()


def held(queue: Queue, account_id: object, claim: object) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for rows that this claim still holds."""
    held = [queue.table.c.account_id == account_id, queue.claims == claim]
    return held if queue.in_work is None else [*held, queue.in_work]


def change(
    queue: Queue, account_id: str, claims: Iterable[tuple[str, int]], values: Mapping[Any, object]
) -> None:
    """Change those rows (id, claim) that are still held, in the open transaction."""
    by_claim: dict[int, list[str]] = {}
    for id, claim in claims:
        by_claim.setdefault(claim, []).append(id)
    for claim, ids in by_claim.items():
        rows = (*held(queue, account_id, claim), filters.is_any_of(queue.table.c.id, ids))
        db.connection().execute(sa.update(queue.table).where(*rows).values(dict(values)))


def release(queue: Queue, account_id: str, claims: Iterable[tuple[str, int]]) -> None:
    """Make those rows (id, claim) that are still held due at once."""
    with db.transaction():
        change(queue, account_id, claims, {queue.table.c.due_at: database_now()})
