"""Answers that are given again: POST with an `Idempotency-Key` (contract section 1).

A key is first claimed, in a transaction of its own, so that a second request sees that the first
is running. The commit of the change itself waits until the answer is known (`db.hold_commits`), and
the answer is written along with it: so there is no change without its answer, and no answer to
what was rolled back. Whoever is killed leaves a claim that another may take over after a while; if
it lives after all, its change finds the claim gone and is rolled back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as insert_on_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite
from sqlalchemy.orm import Mapped, mapped_column

from app import crypto, db, jobs
from app.db import like
from app.db.functions import database_now
from app.db.types import Id, Text, UtcDateTime
from app.errors import Conflict, Malformed
from app.ids import new_id

LONGEST_KEY = 255
KEPT_SECONDS = 24 * 3600
CLAIM_SECONDS = 60
HEADER = "Idempotency-Key"
PIECE = 100
# An address in JSON that is no part of a longer one; an escape as of a line's end may lead it.
MENTIONED = r"(?:(?<![\w.+-])|(?<=\\[bfnrt]))(?:{})(?![\w-]|\.\w)"


class IdempotencyKey(db.Base):
    """A key that a caller has used, and what was answered; no status while it is running."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (sa.Index("ix_idempotency_keys_claimed", "claimed_at"),)

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    caller: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    claim: Mapped[str] = mapped_column(Text)
    request: Mapped[str] = mapped_column(Text)
    """What path and body are recognised by."""
    status: Mapped[int | None]
    answer: Mapped[str | None] = mapped_column(Text)
    etag: Mapped[str | None] = mapped_column(Text)
    made: Mapped[str | None] = mapped_column(Text)
    """Where the answer shows a secret and is not kept: the id of what was made."""
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)


TABLE: Any = IdempotencyKey.__table__


@dataclass(frozen=True)
class Claim:
    """The right to carry out a request under a key."""

    account_id: str
    caller: str
    key: str
    token: str

    @property
    def mine(self) -> list[Any]:
        """The row, unless another has taken it over."""
        return [
            TABLE.c.account_id == self.account_id,
            TABLE.c.caller == self.caller,
            TABLE.c.key == self.key,
            TABLE.c.claim == self.token,
        ]


@dataclass(frozen=True)
class SavedResponse:
    """What was answered before."""

    status: int
    text: str
    etag: str | None


def request_fingerprints(path: str, query: bytes, body: bytes) -> Sequence[str]:
    """What tells one request from another under the same key: what is kept, and what may be."""
    parts = (path.rstrip("/").encode(), query, body)
    told = b"".join(hashlib.sha256(part).digest() for part in parts)
    # The last is as former versions kept it, whose rows stay for a day.
    return [*crypto.fingerprints(told, "idempotency"), hashlib.sha256(told).hexdigest()]


def claim(account_id: str, caller: str, key: str, request: Sequence[str]) -> Claim | SavedResponse:
    """The right to carry out a request, or what was answered to it before.

    Raises Malformed (422) for a key of another request, Conflict while it is running, and
    `already_done` where the answer was not kept.
    """
    if not 1 <= len(key) <= LONGEST_KEY:
        msg = f"Must have 1 to {LONGEST_KEY} characters."
        raise Malformed.at("header", HEADER, msg=msg)
    mine = Claim(account_id, caller, key, new_id())
    found = _claimed(mine, request[0])
    if found is None:
        db.hold_commits()
        return mine
    return _before(found, request)


def _claimed(claim: Claim, request: str) -> sa.Row[Any] | None:
    """Claim a key: None if it worked, else what stands in the way."""
    new = {
        "account_id": claim.account_id,
        "caller": claim.caller,
        "key": claim.key,
        "claim": claim.token,
        "request": request,
        "claimed_at": database_now(),
    }
    over = sa.or_(
        TABLE.c.claimed_at < database_now(-KEPT_SECONDS),
        sa.and_(TABLE.c.status.is_(None), TABLE.c.claimed_at < database_now(-CLAIM_SECONDS)),
    )
    taken_over = {**new, **dict.fromkeys(("status", "answer", "etag", "made"))}
    with db.transaction():
        connection = db.connection()
        is_sqlite = connection.dialect.name == "sqlite"
        insert: Any = insert_on_sqlite if is_sqlite else insert_on_postgresql
        statement = insert(TABLE).values(**new)
        claimed = statement.on_conflict_do_update(
            index_elements=list(TABLE.primary_key), set_=taken_over, where=over
        ).returning(TABLE.c.claim)
        if connection.execute(claimed).first() is not None:
            return None
        found = connection.execute(sa.select(TABLE).where(*claim.mine[:3])).first()
    return found or _claimed(claim, request)  # it failed just now, and let go of the key


def _before(found: sa.Row[Any], request: Sequence[str]) -> SavedResponse:
    if found.request not in request:
        msg = "This key was used for another request."
        raise Malformed.at("header", HEADER, msg=msg, type="key_reused")
    if found.status is None:
        raise Conflict("A request with this key is running.", error="in_progress")
    if found.answer is None:
        message = "This was done already. Its answer showed a secret, and was not kept."
        raise Conflict(message, error="already_done", id=found.made)
    return SavedResponse(found.status, found.answer, found.etag)


def save_response(
    claim: Claim, status: int, answer: str | None, etag: str | None, made: Any
) -> None:
    """Keep the answer, in the transaction of what was done. Raises Conflict if it took too long."""
    db.hold_commits(hold=False)
    kept = sa.update(TABLE).where(*claim.mine)
    with db.held_transaction():
        done = db.connection().execute(
            kept.values(status=status, answer=answer, etag=etag, made=made)
        )
        if done.rowcount != 1:
            message = "This took so long that a repeat of it was let in."
            raise Conflict(message, error="in_progress")


def release(claim: Claim, *, keep_changes: bool) -> None:
    """Let the request be made again: it failed. What it did nevertheless is kept or undone."""
    db.hold_commits(hold=False)
    if not keep_changes:
        db.rollback_held()
    unanswered = TABLE.c.status.is_(None)
    with db.transaction():
        db.connection().execute(sa.delete(TABLE).where(*claim.mine, unanswered))


def delete_mentions(addresses: Collection[str]) -> None:
    """Forget answers of all accounts that name an address within a text, in whatever case."""
    key, answer = [*TABLE.primary_key], TABLE.c.answer
    told = (like.contains_ignoring_case(answer, like.search_key(one)) for one in addresses)
    named = sa.or_(sa.false(), *told)
    chosen, last = sa.select(*key, answer).where(named).order_by(*key).limit(PIECE), ("", "", "")
    # To forget what tells of a longer address would let a request be done twice.
    whole = re.compile(MENTIONED.format("|".join(map(re.escape, addresses))), re.IGNORECASE)
    while rows := db.connection().execute(chosen.where(sa.tuple_(*key) > last)).all():
        last = rows[-1][:-1]
        mine = [row[:-1] for row in rows if whole.search(row.answer)]
        db.connection().execute(sa.delete(TABLE).where(sa.tuple_(*key).in_(mine)))


@jobs.periodic(3600, "idempotency.purge")
def purge(payload: Mapping[str, Any]) -> None:
    """Forget answers that are not given again any more."""
    db.purge(TABLE, TABLE.c.claimed_at < database_now(-KEPT_SECONDS))
