"""The addresses of deleted users, who do not come back by a provider or a domain by themselves.

An admin lets them in by an invitation or by creating the user, the directory by SCIM.
"""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.accounts.models import DeletedAddress

TABLE: Any = DeletedAddress.__table__


def remember(account_id: str, email_key: str) -> None:
    """Remember the address of a user that is deleted, in the open transaction."""
    db.db.session.merge(DeletedAddress(**_key(account_id, email_key)))


def forget(account_id: str, email_key: str) -> None:
    """Forget an address, as it has a user again, in the open transaction."""
    own = (TABLE.c[name] == value for name, value in _key(account_id, email_key).items())
    db.db.session.execute(sa.delete(TABLE).where(*own))


def contains(account_id: str, email_key: str) -> bool:
    """Whether a user with this address was deleted."""
    row = db.db.session.get(DeletedAddress, tuple(_key(account_id, email_key).values()))
    return row is not None


def _key(account_id: str, email_key: str) -> dict[str, str]:
    # With the account's id, or the hashes of two accounts could be compared.
    digest = hashlib.sha256(f"{account_id}\n{email_key}".encode()).hexdigest()
    return {"account_id": account_id, "email_hash": digest}


@events.subscribe(events.AccountClosed)
def _remove(event: events.AccountClosed) -> None:
    db.db.session.execute(sa.delete(TABLE).where(TABLE.c.account_id == event.account_id))
