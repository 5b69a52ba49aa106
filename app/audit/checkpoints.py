"""Checkpoints of the audit log: a chain that has grown gets one, also logged and mailed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sqlalchemy as sa
import structlog

from app import clock, config, db, jobs
from app.audit import sealing
from app.audit.chain import digest, signing
from app.audit.models import AuditChange, AuditCheckpoint, AuditHead
from app.outbound import mail

log = structlog.get_logger()
EVERY_SECONDS = 600


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
    if not signing.public_keys():
        return 0
    sealing.seal_due()
    grown = sa.select(AuditHead.account_id).where(AuditHead.last_id > AuditHead.checkpoint_id)
    return sum(create(account_id) for account_id in db.db.session.scalars(grown).all())


def create(account_id: str) -> bool:
    """Create a checkpoint of a chain, if it has grown and its last entry matches the head."""
    sealing.settle(account_id)
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
        signed = signing.sign_chain(account_id, head.last_id, head.checksum)
        if signed is None:
            return False
        row = AuditCheckpoint(**{**signed, "created_at": clock.parse(str(signed["created_at"]))})
        session.add(row)
        head.checkpoint_id = head.last_id
        session.flush()
        log.info("audit checkpoint", **to_dict(row))
        if config.current().audit_checkpoint_email:
            jobs.enqueue("audit.mail_checkpoint", to_dict(row), account_id=account_id)
    return True


@jobs.job("audit.mail_checkpoint", mails=True)
def mail_checkpoint(payload: Mapping[str, object]) -> None:
    """Mail a checkpoint to the configured address."""
    text = digest.canonical(dict(payload)).decode()
    to = config.current().audit_checkpoint_email
    if to:
        mail.send(to, "audit_checkpoint", checkpoint=text, account_id=payload["account_id"])
