"""Erasing values or actors from entries while the chain still verifies.

Erased columns become null together with their salts, so that the digests, which are kept, cannot
confirm a guess. Each erasure adds an entry to the same chain, which tells verifiers that it was no
tampering.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app import db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import append, entries
from app.audit.chain import digest
from app.audit.entries import CHANGES
from app.audit.models import FeedChange
from app.db import Base
from app.types import JSONObject

BATCH_SIZE = 500
FEED = Base.metadata.tables[FeedChange.__tablename__]


class Part(NamedTuple):
    """What an erasure empties of a change, and what it keeps of each entry."""

    name: str
    columns: Sequence[str]
    salts: str
    salt: str
    digest: str


VALUES = Part("values", ("old_values", "new_values", "unchanged"), "salts", "salt", "values_digest")
ACTOR = Part("actor", digest.ACTOR_COLUMNS, "actor_salts", "actor_salt", "actor_digest")


def erase_values(
    account_id: str, table_name: str, record_id: str, until: datetime | None = None
) -> int:
    """Erase all values of a row, or those before a moment. Returns the number of entries."""
    row = {"account_id": account_id, "table_name": table_name, "record_id": record_id}

    def conditions(table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
        before = [] if until is None else [table.c.occurred_at < until]
        return [*(table.c[name] == value for name, value in row.items()), *before]

    with db.transaction() as session:
        of_feed = sa.update(FEED).where(*conditions(FEED))
        session.execute(of_feed.values(columns="[]", **dict.fromkeys(VALUES.columns)))
        return _erase(VALUES, conditions(CHANGES))


def erase_actor(account_id: str, user_id: str, email: str) -> int:
    """Erase a user as actor and signer of entries. Returns the number of entries."""
    acted = (CHANGES.c.user_id == user_id,)
    signed = (CHANGES.c.account_id == account_id, CHANGES.c.es_username == email)
    superadmins = db.connection().scalars(_superadmins()).all()
    by_superadmins = (CHANGES.c.user_id.in_(superadmins), CHANGES.c.es_username == email)
    # If another account has a user with this address, the signature may be theirs.
    parts = (acted, signed) if _is_in_use(email) else (acted, signed, by_superadmins)
    return sum(_erase(ACTOR, conditions) for conditions in parts)


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


def _erase(part: Part, conditions: Sequence[Any]) -> int:
    where = (*conditions, CHANGES.c[part.salts].is_not(None))
    concerned = sa.select(CHANGES.c.account_id).where(*where).distinct()
    with db.transaction() as session:
        # Account by account, as no lock spans shards.
        account_ids = sorted(session.scalars(concerned))
        return sum(_erase_in_account(session, id, part, where) for id in account_ids)


def _erase_in_account(session: Session, account_id: str, part: Part, where: Sequence[Any]) -> int:
    count, own = 0, CHANGES.c.account_id == account_id
    query = sa.select(*entries.columns(account_id=account_id)).where(own, *where)
    # Locked: another erasure of the same change must see the digests that this one adds.
    query = query.order_by(*CHANGES.primary_key).with_for_update(of=CHANGES)
    while rows := session.execute(query.limit(BATCH_SIZE)).all():
        count += sum(_erase_in(row._asdict(), part) for row in rows)
    return count


def _erase_in(change: JSONObject, part: Part) -> int:
    found = entries.of_change(change)
    digests = orjson.loads(change["erased_digests"] or "{}")
    digests[part.name] = [entry[part.digest] for entry in found]
    place = [CHANGES.c[name] == change[name] for name in ("account_id", "first_id")]
    emptied = dict.fromkeys((*part.columns, part.salts))
    kept = {"erased_digests": orjson.dumps(digests).decode()}
    db.connection().execute(sa.update(CHANGES).where(*place).values(**emptied, **kept))
    value = (part.salt, append.HIDDEN, None)
    for entry in found:
        id = str(entry["id"])
        # Verification would fail without this entry.
        append.record(change["account_id"], append.UPDATE, "audit_log", id, [value], always=True)
    return len(found)
