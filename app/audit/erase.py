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
from sqlalchemy.exc import SQLAlchemyError

from app import db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import append, entries, sealing
from app.audit.append import Change
from app.audit.chain import digest
from app.audit.entries import CHANGES
from app.audit.models import FeedChange
from app.db import Base
from app.errors import Unavailable
from app.types import JSONObject

BATCH_SIZE = 500
FEED = Base.metadata.tables[FeedChange.__tablename__]


class Part(NamedTuple):
    """A part of a change that can be erased: its columns, salts and digest."""

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
        sealing.settle(account_id)
        of_feed = sa.update(FEED).where(*conditions(FEED))
        session.execute(of_feed.values(columns="[]", **dict.fromkeys(VALUES.columns)))
        return _erase(VALUES, conditions(CHANGES))


def settle_each() -> list[str]:
    """Seal the changes of all accounts, one by one. Returns those whose changes cannot be sealed.

    Raises SQLAlchemyError where no account can be sealed.
    """
    unsealed = []
    for one in sealing.due():
        try:
            with sealing.brief():
                sealing.settle(one)
        except (SQLAlchemyError, Unavailable) as error:
            if db.has_one_writer() and not isinstance(error, Unavailable):
                raise
            unsealed.append(one)
    return unsealed


def erase_actor(account_id: str, user_id: str, email: str) -> int:
    """Erase a user as actor and signer of sealed entries. Returns the number of entries."""
    acted = (CHANGES.c.user_id == user_id,)
    # In the name of somebody else; in the words of the index.
    is_other = CHANGES.c.actor_kind != sa.literal_column("'user'")
    named = (CHANGES.c.actor_id == user_id, is_other)
    signed = (CHANGES.c.account_id == account_id, CHANGES.c.es_username == email)
    erased = [acted, named, signed]
    in_use = sa.exists().where(User.email_key == accounts.email_key(email))
    # If another account has a user with this address, the signature may be theirs.
    if not db.connection().scalar(sa.select(in_use)):
        # Users sign what superadmins do in their account, which may end up in other chains.
        users = (
            CHANGES.c.account_id == SYSTEM_ACCOUNT_ID,
            CHANGES.c.table_name == User.__tablename__,
        )
        superadmins = db.connection().scalars(sa.select(CHANGES.c.record_id).where(*users)).all()
        erased.append((CHANGES.c.user_id.in_(superadmins), CHANGES.c.es_username == email))
    # Names of keys, which act in the user's account only.
    by_key = (FEED.c.account_id == account_id, FEED.c.user_id == user_id)
    with db.transaction() as session:
        session.execute(sa.update(FEED).where(*by_key).values(actor_name=None))
    return sum(_erase(ACTOR, conditions) for conditions in erased)


def _erase(part: Part, conditions: Sequence[Any]) -> int:
    where = (*conditions, CHANGES.c[part.salts].is_not(None))
    concerned, count = sa.select(CHANGES.c.account_id).where(*where).distinct(), 0
    with db.transaction() as session:
        # Account by account, as no lock spans shards.
        for account_id in sorted(session.scalars(concerned)):
            own = CHANGES.c.account_id == account_id
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
        target = (append.UPDATE, "audit_log", str(entry["id"]))
        append.record(Change(change["account_id"], target, [value]), always=True)
    # Verification would fail without these entries.
    sealing.settle_before_commit(change["account_id"])
    return len(found)
