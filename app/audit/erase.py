"""Erasing values or actors from entries while the chain still verifies (contract section 7).

Erased columns become null together with their salt, so that digests cannot confirm a guess. Each
erasure adds an entry to the same chain, which tells verifiers that it was no tampering.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import append, digest
from app.audit.entries import CHANGES, LOG, join_entries

BATCH_SIZE = 500


def erase_values(account_id: str, table_name: str, record_id: str) -> int:
    """Erase all values of a row. Returns the number of entries."""
    entries = join_entries(
        CHANGES.c.account_id == account_id,
        CHANGES.c.table_name == table_name,
        CHANGES.c.record_id == record_id,
    )
    return _erase(entries, "salt", ("old_value", "new_value"))


def erase_actor(account_id: str, user_id: str, email: str) -> int:
    """Erase a user as actor and signer of entries. Returns the number of entries."""
    acted = join_entries(CHANGES.c.user_id == user_id)
    signed = join_entries(LOG.c.account_id == account_id, LOG.c.es_username == email)
    by_superadmins = join_entries(CHANGES.c.user_id.in_(_superadmins()), LOG.c.es_username == email)
    # If another account has a user with this address, the signature may be theirs.
    joins = (acted, signed) if _is_in_use(email) else (acted, signed, by_superadmins)
    return sum(_erase(join, "actor_salt", digest.ACTOR_COLUMNS) for join in joins)


def _superadmins() -> sa.Select[str]:
    # Users sign what superadmins do in their account, which may end up in other chains.
    changes = CHANGES.alias()
    conditions = (
        changes.c.account_id == SYSTEM_ACCOUNT_ID,
        changes.c.table_name == User.__tablename__,
    )
    return sa.select(changes.c.record_id).where(*conditions)


def _is_in_use(email: str) -> bool:
    same = sa.exists().where(User.email_key == accounts.email_key(email))
    return bool(db.connection().scalar(sa.select(same)))


def _erase(entries: sa.Join, salt: str, columns: Sequence[str]) -> int:
    count = 0
    with db.transaction() as session:
        query = sa.select(LOG.c.account_id, LOG.c.id).select_from(entries)
        query = query.where(LOG.c[salt].is_not(None))
        while rows := session.execute(query.limit(BATCH_SIZE)).all():
            for account_id in {row.account_id for row in rows}:
                ids = [row.id for row in rows if row.account_id == account_id]
                _erase_batch(account_id, ids, salt, columns)
            count += len(rows)
    return count


def _erase_batch(account_id: str, ids: Sequence[int], salt: str, columns: Sequence[str]) -> None:
    statement = sa.update(LOG).where(LOG.c.account_id == account_id, LOG.c.id.in_(ids))
    db.connection().execute(statement.values(dict.fromkeys((*columns, salt))))
    for id in ids:
        value = (salt, append.HIDDEN, None)
        # Verification would fail without this entry.
        append.record(account_id, append.UPDATE, "audit_log", str(id), [value], always=True)
