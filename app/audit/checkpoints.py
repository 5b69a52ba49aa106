"""Checkpoints: signed statements of how far a chain had come, kept also outside the database.

Whoever owns the database could cut off the end of a chain, or write all of it anew with fitting
hashes. Neither fits a checkpoint that was kept elsewhere: in the logs, in an export, in a mailbox.
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
from app.audit.models import AuditCheckpoint, AuditEntry, AuditHead
from app.outbound import mail

log = structlog.get_logger()
Checkpoint = Mapping[str, Any]
EVERY_SECONDS = 600
SIGNED = ("account_id", "checksum", "created_at", "entry_id")


def page(account_id: str | None, skip: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Checkpoints, the newest first, and how many there are."""
    where = [AuditCheckpoint.account_id == account_id.lower()] if account_id else []
    total = db.db.session.scalar(
        sa.select(sa.func.count()).select_from(AuditCheckpoint).where(*where)
    )
    newest = (AuditCheckpoint.created_at.desc(), AuditCheckpoint.account_id)
    chosen = sa.select(AuditCheckpoint).where(*where).order_by(*newest, AuditCheckpoint.entry_id)
    rows = db.db.session.scalars(chosen.offset(skip).limit(limit))
    return [shown(row) for row in rows], total or 0


def of(account_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The checkpoints of an account, or of all."""
    where = [AuditCheckpoint.account_id == account_id] if account_id else []
    key = (AuditCheckpoint.account_id, AuditCheckpoint.entry_id)
    yield from map(
        shown, db.db.session.scalars(sa.select(AuditCheckpoint).where(*where).order_by(*key))
    )


def shown(row: AuditCheckpoint) -> dict[str, Any]:
    """A checkpoint as answers, exports, logs and mails have it."""
    return {
        "account_id": row.account_id,
        "entry_id": row.entry_id,
        "checksum": row.checksum,
        "created_at": clock.iso(row.created_at),
        "public_key": row.public_key,
        "signature": row.signature,
    }


@jobs.periodic(EVERY_SECONDS, "audit.checkpoint")
def make_checkpoints(payload: Mapping[str, Any]) -> None:
    """Have checkpoints made from time to time."""
    make_due()


def make_due() -> int:
    """Make a checkpoint of every chain that has grown since its last. Returns how many."""
    if not _keys():
        return 0
    grown = sa.select(AuditHead.account_id).where(AuditHead.last_id > AuditHead.checkpoint_id)
    return sum(make(account_id) for account_id in db.db.session.scalars(grown).all())


def make(account_id: str) -> bool:
    """Make a checkpoint of a chain, unless it has not grown, or its end is not what it was."""
    with db.transaction() as session:
        keys, locked = _keys(), sa.select(AuditHead).with_for_update()
        head = session.scalar(locked.where(AuditHead.account_id == account_id))
        if not keys or head is None or head.last_id <= head.checkpoint_id:
            return False
        last = session.get(AuditEntry, (account_id, head.last_id))
        if last is None or last.checksum != head.checksum:
            log.error("audit chain broken", account=account_id, entry=head.last_id)
            return False
        made = _signed(keys[0], head)
        session.add(made)
        head.checkpoint_id = head.last_id
        session.flush()
        log.info("audit checkpoint", **shown(made))
        if config.current().audit_checkpoint_email:
            jobs.enqueue("audit.mail_checkpoint", shown(made), account_id=account_id)
    return True


@jobs.job("audit.mail_checkpoint", mails=True)
def mail_checkpoint(payload: Mapping[str, Any]) -> None:
    """Mail a checkpoint to the address that keeps them."""
    text = digest.canonical(dict(payload)).decode()
    to = config.current().audit_checkpoint_email
    if to:
        mail.send(to, "audit_checkpoint", checkpoint=text, account_id=payload["account_id"])


def fault(checkpoint: Checkpoint) -> str | None:
    """What is wrong with a checkpoint's signature, if anything."""
    known = [_public(key) for key in _keys()]
    if known and checkpoint["public_key"] not in known:
        return "a checkpoint is signed with a key that is not ours"
    try:
        signature = bytes.fromhex(checkpoint["signature"])
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(checkpoint["public_key"]))
        signer.verify(signature, _message(checkpoint))
    except (InvalidSignature, ValueError):
        return "a checkpoint's signature is wrong"
    return None


def _keys() -> list[Ed25519PrivateKey]:
    texts = config.current().audit_checkpoint_key
    return [Ed25519PrivateKey.from_private_bytes(urlsafe_b64decode(text)) for text in texts]


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def _message(checkpoint: Checkpoint) -> bytes:
    return digest.canonical({name: checkpoint[name] for name in SIGNED})


def _signed(key: Ed25519PrivateKey, head: AuditHead) -> AuditCheckpoint:
    made = AuditCheckpoint(
        account_id=head.account_id,
        entry_id=head.last_id,
        checksum=head.checksum,
        created_at=clock.now(),
        public_key=_public(key),
        signature="",
    )
    made.signature = key.sign(_message(shown(made))).hex()
    return made
