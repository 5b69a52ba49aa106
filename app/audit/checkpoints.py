"""Checkpoints: signed statements of a chain's state, also stored outside the database.

Whoever controls the database could truncate a chain or rewrite it with matching hashes. Neither
matches a checkpoint stored elsewhere: in logs, exports or a mailbox.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
import structlog
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app import clock, config, db, jobs
from app.audit import digest
from app.audit.models import AuditChange, AuditCheckpoint, AuditHead, AuditStart
from app.db import Base
from app.outbound import mail
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
Checkpoint = JSONMapping
EVERY_SECONDS = 600
SIGNED = ("account_id", "checksum", "created_at", "entry_id")
STORED_START = (*SIGNED, "removed", "public_key", "signature")
START = "start"
"""The `kind` of a start, which is part of what is signed: no checkpoint passes as a start."""


def page(account_id: str | None, skip: int, limit: int) -> tuple[list[dict[str, object]], int]:
    """One page of checkpoints, the newest first, and the total."""
    conditions = [AuditCheckpoint.account_id == account_id.lower()] if account_id else []
    total = db.db.session.scalar(
        sa.select(sa.func.count()).select_from(AuditCheckpoint).where(*conditions)
    )
    newest = (AuditCheckpoint.created_at.desc(), AuditCheckpoint.account_id)
    query = (
        sa.select(AuditCheckpoint).where(*conditions).order_by(*newest, AuditCheckpoint.entry_id)
    )
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return [to_dict(row) for row in rows], total or 0


def for_account(account_id: str | None = None) -> Iterator[dict[str, object]]:
    """The checkpoints of an account (None: of all)."""
    conditions = [AuditCheckpoint.account_id == account_id] if account_id else []
    key = (AuditCheckpoint.account_id, AuditCheckpoint.entry_id)
    yield from map(
        to_dict, db.db.session.scalars(sa.select(AuditCheckpoint).where(*conditions).order_by(*key))
    )


def to_dict(row: AuditCheckpoint) -> dict[str, object]:
    """A checkpoint as in responses, exports, logs and mails."""
    return {
        "account_id": row.account_id,
        "entry_id": row.entry_id,
        "checksum": row.checksum,
        "created_at": clock.iso(row.created_at),
        "public_key": row.public_key,
        "signature": row.signature,
    }


@jobs.periodic(EVERY_SECONDS, "audit.checkpoint")
def create_periodically(payload: Mapping[str, object]) -> None:
    create_due()


def create_due() -> int:
    """Create a checkpoint for every chain that has grown. Returns the number created."""
    if not _keys():
        return 0
    grown = sa.select(AuditHead.account_id).where(AuditHead.last_id > AuditHead.checkpoint_id)
    return sum(create(account_id) for account_id in db.db.session.scalars(grown).all())


def create(account_id: str) -> bool:
    """Create a checkpoint of a chain, if it has grown and its last entry matches the head."""
    with db.transaction() as session:
        heads = sa.select(AuditHead).with_for_update()
        head = session.scalar(heads.where(AuditHead.account_id == account_id))
        if head is None or head.last_id <= head.checkpoint_id:
            return False
        mine = sa.select(AuditChange).where(AuditChange.account_id == account_id)
        last = session.scalar(mine.order_by(AuditChange.first_id.desc()).limit(1))
        stored = last and (last.last_id, last.checksum.hex())
        if stored != (head.last_id, head.checksum):
            log.error("audit chain broken", account=account_id, entry=head.last_id)
            return False
        checkpoint = _signed(head)
        if checkpoint is None:
            return False
        session.add(checkpoint)
        head.checkpoint_id = head.last_id
        session.flush()
        log.info("audit checkpoint", **to_dict(checkpoint))
        if config.current().audit_checkpoint_email:
            jobs.enqueue("audit.mail_checkpoint", to_dict(checkpoint), account_id=account_id)
    return True


@jobs.job("audit.mail_checkpoint", mails=True)
def mail_checkpoint(payload: Mapping[str, object]) -> None:
    """Mail a checkpoint to the configured address."""
    text = digest.canonical(dict(payload)).decode()
    to = config.current().audit_checkpoint_email
    if to:
        mail.send(to, "audit_checkpoint", checkpoint=text, account_id=payload["account_id"])


def fault(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint's signature is invalid, or None."""
    known = public_keys()
    # Without a key nobody can have cut the log.
    if (known or is_start(checkpoint)) and checkpoint["public_key"] not in known:
        return f"{_name(checkpoint)} is signed with an unknown key"
    if not is_signed(message(checkpoint), checkpoint["public_key"], checkpoint["signature"]):
        return f"{_name(checkpoint)}'s signature is invalid"
    return None


def sign(message: bytes) -> tuple[str, str] | None:
    """The public key and the signature of a message, in hex; None without a configured key."""
    for key in _keys()[:1]:
        return _public(key), key.sign(message).hex()
    return None


def is_signed(message: bytes, public_key: str, signature: str) -> bool:
    """Whether a signature of a message, both in hex, is valid."""
    try:
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        signer.verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_keys() -> list[str]:
    """The public keys of this instance, the newest first."""
    return [_public(key) for key in _keys()]


def _keys() -> list[Ed25519PrivateKey]:
    texts = config.current().audit_checkpoint_key
    return [Ed25519PrivateKey.from_private_bytes(urlsafe_b64decode(text)) for text in texts]


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def message(checkpoint: Checkpoint) -> bytes:
    """What the signature of a checkpoint or start is of."""
    names = (*SIGNED, "kind", "removed") if is_start(checkpoint) else SIGNED
    return digest.canonical({name: checkpoint[name] for name in names})


def is_start(checkpoint: Checkpoint) -> bool:
    """Whether the statement says that the chain begins after its entry."""
    return checkpoint.get("kind") == START


def _name(checkpoint: Checkpoint) -> str:
    return "a start" if is_start(checkpoint) else "a checkpoint"


def start_of(account_id: str) -> JSONObject | None:
    """The start of an account's chain; None if it was never cut."""
    return next(starts(account_id), None)


def starts(account_id: str | None = None) -> Iterator[JSONObject]:
    """The start of an account's chain (None: of all), where it was cut."""
    table = Base.metadata.tables[AuditStart.__tablename__]
    conditions = [table.c.account_id == account_id] if account_id else []
    query = sa.select(table).where(*conditions).order_by(table.c.account_id)
    for row in db.connection().execute(query).all():
        yield stored_start(row._asdict())


def stored_start(row: Mapping[str, Any]) -> JSONObject:
    """The statement in a row of `audit_starts`."""
    values = {"checksum": row["checksum"].hex(), "created_at": clock.iso(row["created_at"])}
    return {**row, **values, "kind": START}


def start_row(start: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `audit_starts` for a statement."""
    values: dict[str, Any] = {name: start[name] for name in STORED_START}
    values["checksum"] = bytes.fromhex(values["checksum"])
    values["created_at"] = clock.parse(values["created_at"])
    return values


def sign_chain(
    account_id: str, entry_id: int, checksum: str, removed: int | None = None
) -> dict[str, object] | None:
    """A checkpoint of a chain, signed with the newest key; None without a key.

    With `removed`, the number of entries removed, it is a start.
    """
    checkpoint: dict[str, object] = {
        "account_id": account_id,
        "entry_id": entry_id,
        "checksum": checksum,
        "created_at": clock.iso(clock.now()),
    }
    if removed is not None:
        checkpoint |= {"kind": START, "removed": removed}
    signed = sign(message(checkpoint))
    if signed is None:
        return None
    return checkpoint | dict(zip(("public_key", "signature"), signed, strict=True))


def _signed(head: AuditHead) -> AuditCheckpoint | None:
    signed = sign_chain(head.account_id, head.last_id, head.checksum)
    if signed is None:
        return None
    return AuditCheckpoint(**{**signed, "created_at": clock.parse(str(signed["created_at"]))})
