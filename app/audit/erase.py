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
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import append, digest
from app.audit.entries import CHANGES, LOG, told_by

PIECE = 500


def values(account_id: str, table_name: str, record_id: str) -> int:
    """Erase every value of a row. Returns of how many entries."""
    mine = told_by(
        CHANGES.c.account_id == account_id,
        CHANGES.c.table_name == table_name,
        CHANGES.c.record_id == record_id,
    )
    return _erase(mine, "salt", ("old_value", "new_value"))


def actors(account_id: str, user_id: str, email: str) -> int:
    """Erase the actor of what a user did, or signed. Returns of how many entries."""
    theirs = told_by(CHANGES.c.user_id == user_id)
    signed = told_by(LOG.c.account_id == account_id, LOG.c.es_username == email)
    of_all = told_by(CHANGES.c.user_id.in_(_superadmins()), LOG.c.es_username == email)
    # It could be somebody else's signature where the same address is a user's elsewhere.
    which = (theirs, signed) if _is_somebodys(email) else (theirs, signed, of_all)
    return sum(_erase(one, "actor_salt", digest.ACTOR_COLUMNS) for one in which)


def _superadmins() -> sa.Select[str]:
    # What they do in an account, its users sign; and it may change what is another's, or all's.
    told = CHANGES.alias()
    mine = (told.c.account_id == SYSTEM_ACCOUNT_ID, told.c.table_name == User.__tablename__)
    return sa.select(told.c.record_id).where(*mine)


def _is_somebodys(email: str) -> bool:
    same = sa.exists().where(User.email_key == accounts.email_key(email))
    return bool(db.connection().scalar(sa.select(same)))


def _erase(which: Any, salt: str, columns: Sequence[str]) -> int:
    erased = 0
    with db.transaction() as session:
        chosen = sa.select(LOG.c.account_id, LOG.c.id).select_from(which)
        chosen = chosen.where(LOG.c[salt].is_not(None))
        while found := session.execute(chosen.limit(PIECE)).all():
            for account_id in {row.account_id for row in found}:
                ids = [row.id for row in found if row.account_id == account_id]
                _erase_piece(account_id, ids, salt, columns)
            erased += len(found)
    return erased


def _erase_piece(account_id: str, ids: Sequence[int], salt: str, columns: Sequence[str]) -> None:
    mine = sa.update(LOG).where(LOG.c.account_id == account_id, LOG.c.id.in_(ids))
    db.connection().execute(mine.values(dict.fromkeys((*columns, salt))))
    for id in ids:
        value = (salt, append.HIDDEN, None)
        # Without it the chain would not verify any more.
        append.note(account_id, append.UPDATE, "audit_log", str(id), [value], always=True)
