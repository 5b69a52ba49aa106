"""Certificates of deletion: what a closed account had, and that nothing of it is left.

The rows are counted in the transaction that closes the account. When the deletion is over, a job
looks at every table and signs what it finds. The audit log stays, and the certificate names its
last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
import structlog

from app import clock, db, events, jobs
from app.accounts.models import Account
from app.accounts.types import Query
from app.audit import checkpoints
from app.audit.chain import digest, signing
from app.audit.models import AuditCheckpoint
from app.collections import definitions
from app.collections.models import RecordCount
from app.context import actor, tenancy
from app.db import versioned_cache
from app.db.policy import OnClose
from app.errors import Conflict, NotFound
from app.files import storage
from app.portability.bundle.models import DeletionCertificate
from app.records import purge
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
KIND = "accounts.certify_deletion"
# After the second round of the deletion, behind all that was in flight.
AFTER_SECONDS = jobs.IN_FLIGHT_SECONDS + 300
AGAIN_SECONDS = 300
CLOSED = DeletionCertificate.closed_account_id
NO_CERTIFICATE = "No account with this id was deleted, or it was before certificates were made."
PENDING = "The deletion is not over. The certificate is made about an hour after it began."
UNSIGNED = "Without SERVICE_AUDIT_CHECKPOINT_KEY no certificate can be signed."


@events.subscribe(events.AccountClosing)
def _begin(event: events.AccountClosing) -> None:
    account_id, counts = event.account_id, dict[str, int]()
    for table in purge.emptied_tables():
        rows = sa.select(sa.func.count()).where(table.c.account_id == account_id)
        counts[table.name] = db.connection().scalar(rows) or 0
    total = sa.func.sum(RecordCount.records)
    query = sa.select(RecordCount.collection_id, total).group_by(RecordCount.collection_id)
    found = db.connection().execute(query.where(RecordCount.account_id == account_id))
    records = {collection_id: int(count) for collection_id, count in found}
    counts |= {
        one.table_name: records[one.id] for one in definitions.get_all() if records.get(one.id)
    }
    row = DeletionCertificate(
        closed_account_id=account_id,
        counts=counts,
        closed_at=clock.now(),
        closed_by=actor.current().user_id,
        certificate=None,
    )
    db.db.session.merge(row)
    jobs.enqueue(KIND, {"account_id": account_id}, account_id=account_id, after=AFTER_SECONDS)


@jobs.job(KIND)
def certify(payload: JSONMapping) -> None:
    """Sign the certificate of an account of which nothing is left, or look again later."""
    account_id = payload["account_id"]
    if _remaining(account_id):
        with db.transaction():
            jobs.enqueue(KIND, payload, account_id=account_id, after=AGAIN_SECONDS)
        return
    checkpoints.create(account_id)
    with tenancy.across_accounts(), db.transaction() as session:
        row = session.get(DeletionCertificate, account_id, with_for_update=True)
        if row is not None and row.certificate is None:
            row.certificate = _signed(row)
            if row.certificate:
                log.info("deletion certificate", **row.certificate)


def get(account_id: str) -> JSONObject:
    """The certificate of a deleted account. Raises NotFound, or Conflict if it is not made yet."""
    row = db.db.session.get(DeletionCertificate, account_id.lower())
    if row is None:
        raise NotFound(NO_CERTIFICATE)
    if row.certificate is None:
        raise Conflict(PENDING if signing.public_keys() else UNSIGNED)
    return row.certificate


@dataclass(frozen=True)
class Deletion:
    """A deleted account."""

    account_id: str
    account_name: str | None
    closed_at: datetime
    closed_by: str
    counts: JSONObject
    certified_at: datetime | None


def page(args: Query) -> tuple[list[Deletion], int]:
    """The deletions of accounts, the newest first, and how many there are."""
    columns = (DeletionCertificate, Account.name)
    named = sa.select(*columns).outerjoin(Account, Account.id == CLOSED)
    newest = named.order_by(DeletionCertificate.closed_at.desc(), CLOSED)
    total = db.db.session.scalar(sa.select(sa.func.count(CLOSED))) or 0
    rows = db.db.session.execute(newest.offset(args["skip"]).limit(args["limit"])).all()
    deletions = [
        Deletion(
            row.closed_account_id,
            name,
            row.closed_at,
            row.closed_by,
            row.counts,
            clock.parse(row.certificate["verified_at"]) if row.certificate else None,
        )
        for row, name in rows
    ]
    return deletions, total


def forget(account_id: str) -> None:
    """Drop what is no certificate yet, as the account has come back."""
    mine = (
        DeletionCertificate.closed_account_id == account_id,
        DeletionCertificate.certificate.is_(None),
    )
    db.connection().execute(sa.delete(DeletionCertificate).where(*mine))


def _signed(row: DeletionCertificate) -> JSONObject | None:
    newest = (
        sa.select(AuditCheckpoint)
        .where(AuditCheckpoint.account_id == row.closed_account_id)
        .order_by(AuditCheckpoint.entry_id.desc())
        .limit(1)
    )
    checkpoint = db.db.session.scalar(newest)
    certificate: JSONObject = {
        "purpose": "deletion",
        "account_id": row.closed_account_id,
        "counts": row.counts,
        "closed_at": clock.iso(row.closed_at),
        "closed_by": row.closed_by,
        "verified_at": clock.iso(clock.now()),
        "kept": sorted(
            name for name, policy in db.policies().items() if policy.on_close is not OnClose.DELETED
        ),
        "checkpoint": checkpoints.to_dict(checkpoint) if checkpoint else None,
    }
    signed = signing.sign(digest.canonical(certificate))
    if signed is None:
        return None
    return certificate | dict(zip(("public_key", "signature"), signed, strict=True))


def _remaining(account_id: str) -> bool:
    with versioned_cache.reloading():
        tables = [one.table for one in definitions.get_all()]
    for table in (*purge.emptied_tables(), *tables):
        mine = sa.select(1).select_from(table).where(table.c.account_id == account_id)
        if db.connection().execute(mine.limit(1)).first() is not None:
            return True
    return next(iter(storage.current().blobs(f"{account_id}/")), None) is not None
