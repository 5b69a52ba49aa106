"""Sealing: rows that transactions left pending are linked to the chain of their account.

One sealer at a time holds the head of a chain; what leaves rows pending never does.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import db
from app.context import tenancy
from app.db.prepared import PreparedStatement
from app.types import JSONObject

BATCH_SIZE = 500
ROOM = 2**22  # characters of values, about, in a batch
MOST_AT_ONCE = 100_000  # rows of an account before others have their turn
Head = sa.Row[Any]
Link = Callable[[str, list[JSONObject], Head], object]
"""Links rows, the oldest first, to an account's chain, whose head is locked."""


class Sealer:
    """Seals the pending rows of a log."""

    def __init__(self, pending: sa.Table, heads: sa.Table, link: Link) -> None:
        self._pending, self._heads, self._link = pending, heads, link
        _, *self._order = pending.primary_key
        own = pending.c.account_id == sa.bindparam("account")
        self._has_any = PreparedStatement(sa.select(sa.exists().where(own)), keyed=True)

    def accounts(self) -> list[str]:
        """The accounts with pending rows."""
        found = sa.select(self._pending.c.account_id).distinct()
        return sorted(db.connection().scalars(found))

    def seal(self, account_id: str, *, wait: bool = True) -> None:
        """Seal an account's pending rows, as far as they are committed.

        Without `wait`, leave them to another process that is sealing them.
        """
        with tenancy.in_account(account_id):
            for _ in range(MOST_AT_ONCE // BATCH_SIZE):
                if not self._has_any.all({"account": account_id})[0][0]:
                    return
                with db.transaction():
                    head = self._lock_head(account_id, wait=wait)
                    rows = self._take(account_id) if head else []
                    if head and rows:
                        self._link(account_id, rows, head)
                if len(rows) < BATCH_SIZE and sum(row.get("size") or 0 for row in rows) < ROOM:
                    return

    def lock_head(self, account_id: str) -> Head:
        """The end of a chain, locked until the transaction ends."""
        head = self._lock_head(account_id, wait=True)
        assert head is not None  # noqa: S101 - it was waited for
        return head

    def _lock_head(self, account_id: str, *, wait: bool) -> Head | None:
        insert = sqlite.insert if db.has_one_writer() else postgresql.insert
        new = insert(self._heads).values(account_id=account_id).on_conflict_do_nothing()
        query = sa.select(self._heads).where(self._heads.c.account_id == account_id)
        locked = query.with_for_update(skip_locked=not wait)
        head = db.connection().execute(locked).first()
        if head is None:
            db.connection().execute(new)
            head = db.connection().execute(locked).first()
        return head

    def _take(self, account_id: str) -> list[JSONObject]:
        # A statement of its own, after the lock: it sees all that earlier holders of the head saw.
        own = self._pending.c.account_id == account_id
        oldest = sa.select(*self._order).where(own).order_by(*self._order).limit(BATCH_SIZE)
        if "size" in self._pending.c:
            size = self._pending.c.size
            before = sa.func.sum(size).over(order_by=self._order) - size
            place = oldest.add_columns(before.label("before")).subquery()
            names = (place.c[column.name] for column in self._order)
            oldest = sa.select(*names).where(sa.func.coalesce(place.c.before, 0) < ROOM)
        taken = sa.delete(self._pending).where(own, sa.tuple_(*self._order).in_(oldest))
        rows = db.connection().execute(taken.returning(*self._pending.c)).mappings()
        return sorted(map(dict, rows), key=itemgetter(*(column.name for column in self._order)))
