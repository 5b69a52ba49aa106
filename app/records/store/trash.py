"""Statements that move records into the trash and out of it (`app.collections.trash`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.audit import append
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.collections.trash import FROM_ROW, TRASH
from app.db import filters
from app.records.store import Row

AT_ONCE = 500  # rows of one statement
KEPT = [name for name in SYSTEM_FIELDS if name not in FROM_ROW]


def put_away(definition: Definition, rows: Iterable[Row], user_id: str | None) -> None:
    """Store records that were just deleted by a user."""
    facts = {"collection_id": definition.id, "deleted_at": clock.now(), "deleted_by": user_id}
    names = (*KEPT, *definition.fields)
    pieces = list[dict[str, Any]]()
    for row in rows:
        texts = {name: append.text(row[name]) for name in names}
        size = sum(len(text.encode()) for text in texts.values() if text is not None)
        own = {"account_id": row["account_id"], "id": row["id"], "record": texts, "size": size}
        pieces.append({**facts, **own})
    for start in range(0, len(pieces), AT_ONCE):
        db.connection().execute(sa.insert(TRASH), pieces[start : start + AT_ONCE])


def forget(definition: Definition, rows: Sequence[Row]) -> Sequence[str]:
    """Remove from the trash what of these records is there; returns its ids."""
    removed = list[str]()
    if rows:
        own = (TRASH.c.account_id == rows[0]["account_id"], TRASH.c.collection_id == definition.id)
        these = filters.is_any_of(TRASH.c.id, [row["id"] for row in rows])
        removing = sa.delete(TRASH).where(*own, these).returning(TRASH.c.id)
        removed += db.connection().scalars(removing)
    return removed


def lock(definition: Definition, account_id: str, record_id: str) -> Any:
    """The row of a record in the trash, locked; None if it is not there."""
    own = (TRASH.c.account_id == account_id, TRASH.c.collection_id == definition.id)
    query = sa.select(TRASH).where(*own, TRASH.c.id == record_id).with_for_update()
    return db.connection().execute(query).first()
