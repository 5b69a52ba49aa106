"""Erasing: values or actors vanish from entries, and the chain still verifies (contract section 7).

What is set to null keeps its digest, and loses its salt, without which nobody can prove a guess.
Each erasure is an entry of the same chain that names the erased one, so that a verifier can tell an
erasure from a theft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app import db
from app.audit import append, digest
from app.audit.models import AuditEntry

PIECE = 500


def values(account_id: str, table_name: str, record_id: str) -> int:
    """Erase every value of a row. Returns of how many entries."""
    mine = (
        AuditEntry.account_id == account_id,
        AuditEntry.table_name == table_name,
        AuditEntry.record_id == record_id,
    )
    return _erase(mine, "salt", ("old_value", "new_value"))


def actors(account_id: str, user_id: str, email: str) -> int:
    """Erase the actor of what a user did, or signed in the own account. Returns of how many."""
    signed = sa.and_(AuditEntry.account_id == account_id, AuditEntry.es_username == email)
    erased = _erase((AuditEntry.user_id == user_id,), "actor_salt", digest.ACTOR_COLUMNS)
    return erased + _erase((signed,), "actor_salt", digest.ACTOR_COLUMNS)


def _erase(which: Sequence[Any], salt: str, columns: Sequence[str]) -> int:
    erased, salted = 0, getattr(AuditEntry, salt).is_not(None)
    with db.transaction() as session:
        chosen = sa.select(AuditEntry.account_id, AuditEntry.id).where(*which, salted)
        while found := session.execute(chosen.limit(PIECE)).all():
            for account_id in {row.account_id for row in found}:
                ids = [row.id for row in found if row.account_id == account_id]
                _erase_piece(account_id, ids, salt, columns)
            erased += len(found)
    return erased


def _erase_piece(account_id: str, ids: Sequence[int], salt: str, columns: Sequence[str]) -> None:
    mine = sa.update(AuditEntry).where(AuditEntry.account_id == account_id, AuditEntry.id.in_(ids))
    db.connection().execute(mine.values(dict.fromkeys((*columns, salt))))
    for id in ids:
        value = (salt, append.HIDDEN, None)
        append.note(account_id, append.UPDATE, "audit_log", str(id), [value])
