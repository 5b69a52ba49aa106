"""Sealing: pending events get numbers without gaps, salts and checksums.

One sealer at a time holds the head of an account's chain; requests never do. Numbers follow the
order of sealing, so an event that committed late comes after one that happened later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import orjson
import sqlalchemy as sa
import structlog
from sqlalchemy.dialects import postgresql, sqlite

from app import db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.audit import checkpoints
from app.audit import sealing as changes
from app.audit.chain import digest, signing
from app.audit.entries import CHANGES
from app.audit.security_log import entries
from app.audit.security_log.entries import EVENTS, HEADS
from app.audit.security_log.recording import PENDING
from app.context import tenancy
from app.types import JSONObject

log = structlog.get_logger()
EVERY_SECONDS = 10
BATCH_SIZE = 500
MOST_AT_ONCE = 100_000  # events of an account in a run of the job
OPERATOR = "Platform operator"


@jobs.periodic(EVERY_SECONDS, "security.seal")
def seal_periodically(payload: Mapping[str, object]) -> None:
    """Seal what is pending in all accounts, and sign the ends of chains that have grown."""
    for account_id in db.connection().scalars(sa.select(PENDING.c.account_id).distinct()).all():
        seal(account_id)


@jobs.periodic(checkpoints.EVERY_SECONDS, "security.checkpoint")
def sign_periodically(payload: Mapping[str, object]) -> None:
    """Sign the end of every chain."""
    for account_id in db.connection().scalars(sa.select(HEADS.c.account_id)).all():
        sign(account_id)


def seal(account_id: str) -> None:
    """Seal an account's pending events, as far as they are committed."""
    for _ in range(MOST_AT_ONCE // BATCH_SIZE):
        if _seal_batch(account_id) < BATCH_SIZE:
            return


def sign(account_id: str) -> JSONObject | None:
    """The newest checkpoint of a chain, signed if it has grown; None without a key."""
    with tenancy.in_account(account_id), db.transaction() as session:
        query = sa.select(HEADS).where(HEADS.c.account_id == account_id).with_for_update()
        head = session.execute(query).mappings().first()
        if head is None or not head["number"]:
            return None
        signed = stored_checkpoint(account_id)
        if signed and not has(account_id, signed):
            log.error("security log checkpoint contradicts the log", **signed)
            return signed  # a new one would hide that the log was rewritten
        if signed is None or signed["entry_id"] < head["number"]:
            chain_id = entries.chain_id(account_id)
            signed = signing.sign_chain(chain_id, head["number"], head["checksum"])
            text = digest.canonical(signed).decode() if signed else None
            stored = sa.update(HEADS).where(HEADS.c.account_id == account_id)
            session.execute(stored.values(checkpoint=text))
            if signed:
                log.info("security log checkpoint", **signed)
        return signed


def stored_checkpoint(account_id: str) -> JSONObject | None:
    """The newest checkpoint of a chain, as it is stored."""
    query = sa.select(HEADS.c.checkpoint).where(HEADS.c.account_id == account_id)
    text = db.connection().scalar(query)
    return orjson.loads(text) if text else None


def has(account_id: str, signed: JSONObject) -> bool:
    """Whether the entry of a checkpoint is stored with the checksum that was signed."""
    place = (EVENTS.c.account_id == account_id, EVENTS.c.number == signed["entry_id"])
    stored = db.connection().scalar(sa.select(EVENTS.c.checksum).where(*place))
    return bool(stored == signed["checksum"])


def _seal_batch(account_id: str) -> int:
    with tenancy.in_account(account_id):
        own = PENDING.c.account_id == account_id
        if db.connection().scalar(sa.select(PENDING.c.id).where(own).limit(1)) is None:
            return 0
        with db.transaction() as session:
            number, checksum = lock_head(account_id)
            oldest = sa.select(PENDING).where(own).order_by(PENDING.c.id).limit(BATCH_SIZE)
            pending = [dict(row) for row in session.execute(oldest).mappings()]
            if pending:
                append(account_id, pending, number, checksum)
                ids = [event["id"] for event in pending]
                session.execute(sa.delete(PENDING).where(own, PENDING.c.id.in_(ids)))
    return len(pending)


def lock_head(account_id: str) -> tuple[int, str]:
    """The number and checksum at the end of a chain, locked until the transaction ends."""
    session = db.db.session
    new = {"account_id": account_id, "number": 0, "checksum": digest.FIRST_PREVIOUS}
    insert = sqlite.insert if db.has_one_writer() else postgresql.insert
    session.execute(insert(HEADS).values(new).on_conflict_do_nothing())
    query = sa.select(HEADS.c.number, HEADS.c.checksum).where(HEADS.c.account_id == account_id)
    row = session.execute(query.with_for_update()).one()
    return row.number, row.checksum


def append(
    account_id: str, events: list[JSONObject], number: int, checksum: str
) -> tuple[int, str]:
    """Link events to the chain, whose head is locked, and move the head. Returns its new end."""
    operators = _operators(account_id, {event["user_id"] for event in events})
    rows = []
    for event in events:
        if event["user_id"] in operators:
            event |= dict.fromkeys(("user_email", "ip_address", "user_agent"))
            event["user_name"] = OPERATOR
            if event["actor_kind"] is not None:
                event["actor_name"] = OPERATOR
        number += 1
        salt, actor_salt = (os.urandom(digest.SALT_BYTES).hex() for _ in range(2))
        entry = entries.to_audit_entry(event, number)
        entry["values_digest"] = digest.values_digest(salt, None, event["details"])
        entry["actor_digest"] = digest.actor_digest(actor_salt, entry)
        checksum = digest.checksum(checksum, number, digest.entry_digest(entry))
        sealed = {name: event[name] for name in event if name != "id"}
        sealed |= {"number": number, "salt": salt, "actor_salt": actor_salt, "checksum": checksum}
        rows.append(sealed | {name: entry[name] for name in ("values_digest", "actor_digest")})
    db.connection().execute(sa.insert(EVENTS), rows)
    moved = sa.update(HEADS).where(HEADS.c.account_id == account_id)
    db.connection().execute(moved.values(number=number, checksum=checksum))
    return number, checksum


def _operators(account_id: str, user_ids: set[str]) -> set[str]:
    """The users, of these, who are superadmins acting in an account that is not theirs."""
    if account_id == SYSTEM_ACCOUNT_ID:
        return set()
    known = sa.select(User.id, User.account_id).where(User.id.in_(user_ids))
    known = known.where(User.account_id.in_((account_id, SYSTEM_ACCOUNT_ID)))
    with tenancy.across_accounts():
        accounts = {row.id: row.account_id for row in db.connection().execute(known)}
        found = {id for id, account in accounts.items() if account == SYSTEM_ACCOUNT_ID}
        gone = user_ids - accounts.keys()
        if gone:  # of users that are deleted since, the audit log knows the account
            changes.settle(SYSTEM_ACCOUNT_ID)
            was = (CHANGES.c.account_id == SYSTEM_ACCOUNT_ID, CHANGES.c.table_name == "users")
            former = sa.select(CHANGES.c.record_id).where(*was, CHANGES.c.record_id.in_(gone))
            found |= set(db.connection().scalars(former.distinct()))
    return found
