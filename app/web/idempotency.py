"""Replays responses: POST with an `Idempotency-Key`.

A request first claims its key, in a transaction of its own, so that a second one sees it running.
The commit of the change is held until the response is known (`db.hold_commits`), and saves both:
there is no change without its response, and no response of a change that was rolled back. A killed
request leaves a claim that another may take over after a minute; if the first is alive after all,
it finds its claim gone and rolls back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as insert_on_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite
from sqlalchemy.orm import Mapped, mapped_column

from app import crypto, db, jobs
from app.db import filters
from app.db.functions import database_now
from app.db.policy import NotAudited, NotBundled, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.errors import Conflict, Malformed
from app.ids import new_id
from app.types import JSONMapping

MAX_KEY_LENGTH = 255
RETENTION_SECONDS = 24 * 3600
CLAIM_SECONDS = 60
HEADER = "Idempotency-Key"
BATCH_ROWS = 100
# An address in JSON that is no part of a longer one; an escape such as \n may precede it.
MENTIONED = r"(?:(?<![\w.+-])|(?<=\\[bfnrt]))(?:{})(?![\w-]|\.\w)"


class IdempotencyKey(db.Base):
    """A key that a caller has used, and the saved response; no status while the request runs."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (sa.Index("ix_idempotency_keys_claimed", "claimed_at"),)
    __policy__ = TablePolicy(
        audit=NotAudited("stored responses; their changes are audited"),
        bundle=NotBundled("responses of a day, for requests of former clients"),
        sample={"caller": Sample.USER_ID, "status": 200, "answer": Sample.JSON},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    caller: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    claim: Mapped[str] = mapped_column(Text)
    request: Mapped[str] = mapped_column(Text)
    """The fingerprint of path, query and body."""
    status: Mapped[int | None]
    answer: Mapped[str | None] = mapped_column(Text)
    etag: Mapped[str | None] = mapped_column(Text)
    made: Mapped[str | None] = mapped_column(Text)
    """The id of the created object, if the response shows a secret and is not saved."""
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime)


TABLE = IdempotencyKey.__table__


@dataclass(frozen=True)
class Claim:
    """The right to run a request under a key."""

    account_id: str
    caller: str
    key: str
    token: str

    @property
    def same_key(self) -> list[sa.ColumnElement[bool]]:
        """The condition for the row of its key, whichever request has claimed it."""
        return [
            TABLE.c.account_id == self.account_id,
            TABLE.c.caller == self.caller,
            TABLE.c.key == self.key,
        ]

    @property
    def own(self) -> list[sa.ColumnElement[bool]]:
        """The condition for its row, unless another request has taken it over."""
        return [*self.same_key, TABLE.c.claim == self.token]


@dataclass(frozen=True)
class SavedResponse:
    """The response of an earlier request."""

    status: int
    text: str
    etag: str | None


def request_fingerprints(path: str, query: bytes, body: bytes) -> Sequence[str]:
    """Return the fingerprints that identify a request: the one to store, then older forms."""
    parts = (path.rstrip("/").encode(), query, body)
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    # Older releases stored the last form; their rows stay for a day.
    return [*crypto.fingerprints(digests, "idempotency"), hashlib.sha256(digests).hexdigest()]


def claim(account_id: str, caller: str, key: str, request: Sequence[str]) -> Claim | SavedResponse:
    """Claim a key, or return the response saved under it.

    Raises Malformed (422) if the key belongs to another request, Conflict while that runs
    (`in_progress`) or if its response was not saved (`already_done`).
    """
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        msg = f"Must have 1 to {MAX_KEY_LENGTH} characters."
        raise Malformed.at("header", HEADER, msg=msg)
    own = Claim(account_id, caller, key, new_id())
    existing = _insert_claim(own, request[0])
    if existing is None:
        db.hold_commits()
        return own
    if existing.request not in request:
        msg = "This key was used for another request."
        raise Malformed.at("header", HEADER, msg=msg, type="key_reused")
    if existing.status is None:
        raise Conflict("A request with this key is running.", error="in_progress")
    if existing.answer is None:
        message = "This request was done already. Its response showed a secret and was not saved."
        raise Conflict(message, error="already_done", id=existing.made)
    return SavedResponse(existing.status, existing.answer, existing.etag)


def _insert_claim(claim: Claim, request: str) -> sa.Row[Any] | None:
    """Claim a key: None on success, else the existing row."""
    new = {
        "account_id": claim.account_id,
        "caller": claim.caller,
        "key": claim.key,
        "claim": claim.token,
        "request": request,
        "claimed_at": database_now(),
    }
    expired = sa.or_(
        TABLE.c.claimed_at < database_now(-RETENTION_SECONDS),
        sa.and_(TABLE.c.status.is_(None), TABLE.c.claimed_at < database_now(-CLAIM_SECONDS)),
    )
    taken_over = dict.fromkeys(("status", "answer", "etag", "made"))
    with db.transaction():
        connection = db.connection()
        is_sqlite = connection.dialect.name == "sqlite"
        insert = insert_on_sqlite if is_sqlite else insert_on_postgresql
        statement = insert(TABLE).values(**new).on_conflict_do_nothing().returning(TABLE.c.claim)
        if connection.execute(statement).first() is not None:
            return None
        # Not by ON CONFLICT DO UPDATE, where Citus lets no condition read the clock.
        values = {name: value for name, value in new.items() if name not in TABLE.primary_key}
        taken = sa.update(TABLE).where(*claim.same_key, expired).values(**values, **taken_over)
        if connection.execute(taken).rowcount == 1:
            return None
        existing = connection.execute(sa.select(TABLE).where(*claim.same_key)).first()
    return existing or _insert_claim(claim, request)  # that request has just failed


def save_response(
    claim: Claim, status: int, answer: str | None, etag: str | None, made: str | None
) -> None:
    """Save the response and commit the held transaction. Raises Conflict if that took too long."""
    db.hold_commits(hold=False)
    saved = sa.update(TABLE).where(*claim.own)
    with db.held_transaction():
        result = db.connection().execute(
            saved.values(status=status, answer=answer, etag=etag, made=made)
        )
        if result.rowcount != 1:
            message = "This request took so long that a retry of it took over."
            raise Conflict(message, error="in_progress")


def release(claim: Claim, *, keep_changes: bool) -> None:
    """Release the key of a failed request; commits or rolls back what it changed."""
    db.hold_commits(hold=False)
    if not keep_changes:
        db.rollback_held()
    unanswered = TABLE.c.status.is_(None)
    with db.transaction():
        db.connection().execute(sa.delete(TABLE).where(*claim.own, unanswered))


def delete_mentions(addresses: Collection[str]) -> None:
    """Delete responses of all accounts that mention an e-mail address, in any case."""
    key, answer = [*TABLE.primary_key], TABLE.c.answer
    matches = (
        filters.contains_ignoring_case(answer, filters.search_key(text)) for text in addresses
    )
    mentioning = sa.select(*key, answer).where(sa.or_(sa.false(), *matches))
    batch, last = mentioning.order_by(*key).limit(BATCH_ROWS), ("", "", "")
    # A mention of a longer address stays: deleting it would let that request run twice.
    whole = re.compile(MENTIONED.format("|".join(map(re.escape, addresses))), re.IGNORECASE)
    while rows := db.connection().execute(batch.where(sa.tuple_(*key) > last)).all():
        last = rows[-1][:-1]
        keys = [row[:-1] for row in rows if whole.search(row.answer)]
        db.connection().execute(sa.delete(TABLE).where(sa.tuple_(*key).in_(keys)))


@jobs.periodic(3600, "idempotency.purge")
def purge(payload: JSONMapping) -> None:
    """Delete expired keys."""
    db.purge(TABLE, TABLE.c.claimed_at < database_now(-RETENTION_SECONDS))
