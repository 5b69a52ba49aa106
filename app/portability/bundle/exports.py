"""Exports by admins of an account: a job writes a file, which can be fetched for a day."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from app import clock, crypto, db, jobs
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, User
from app.accounts.types import Query
from app.audit.models import AuditChange
from app.audit.security_log import reads
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections.models import RecordCount
from app.context import tenancy
from app.db import counts
from app.errors import AppError, Conflict, Forbidden, NotFound, Unavailable
from app.files import purge, storage
from app.files.models import StoredFile
from app.portability import readable
from app.portability.bundle import exporting, frames, snapshot
from app.portability.bundle.models import AccountExport, ExportFormat, ExportState
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
LIFETIME = timedelta(days=1)
LISTED = timedelta(days=90)
"""The time that an expired export stays in the list."""
UNDER_WAY = "An export of this account is under way. Wait until it has ended."
NOT_READY = "The export is not ready. Its status says how far it is."
NEEDS_PII = "A bundle has personal data unmasked: it needs the group pii_access."
FAILURE = "The export failed. Start another one; if it fails again, contact the operator."
KIND = "accounts.export"
LEFT_FREE = 4 * storage.LEFT_FREE  # as it is looked at less often
MOST_COUNTED = 1_000_000  # audit entries
MIME_TYPE = "application/octet-stream"
EXPORTS = db.Base.metadata.tables[AccountExport.__tablename__]
IS_UNDER_WAY = EXPORTS.c.status.in_((ExportState.PENDING, ExportState.RUNNING))
NOT_EXPIRED = EXPORTS.c.status != ExportState.EXPIRED
purge.BLOB_TABLES.append(sa.select(EXPORTS).where(NOT_EXPIRED).subquery())


def start(passphrase: str | None, *, by: Principal) -> AccountExport:
    """Enqueue the export of the account: a bundle, or without a passphrase a readable archive.

    Former exports end. Raises Forbidden, or Conflict while another one is under way.
    """
    account_id = _authorized(by)
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Conflict(snapshot.SYSTEM)
    payload: JSONObject = {}
    if passphrase is not None:
        header = frames.new_header()
        key = frames.derive_key(passphrase, header)  # before the transaction, as it takes a moment
        payload = {"header": header, "key": crypto.encrypt(key.hex())}
    mine = EXPORTS.c.account_id == account_id
    with db.transaction() as session:
        accounts.get_for_update(account_id)  # one at a time
        under_way = (mine, IS_UNDER_WAY, EXPORTS.c.expires_at > clock.now())
        if session.scalar(sa.select(EXPORTS.c.id).where(*under_way).limit(1)):
            raise Conflict(UNDER_WAY)
        ended = sa.update(EXPORTS).where(mine, NOT_EXPIRED).values(expires_at=clock.now())
        former = db.connection().scalars(ended.returning(EXPORTS.c.id)).all()
        export = AccountExport(
            account_id=account_id,
            format=ExportFormat.ZIP if passphrase is None else ExportFormat.BUNDLE,
            requested_by=by.user_id or "",
            expires_at=clock.now() + LIFETIME,
        )
        session.add(export)
        session.flush()
        _note_read(account_id, by)
        payload |= {"account_id": account_id, "export_id": export.id}
        jobs.enqueue(KIND, payload, account_id=account_id)
    for former_id in former:  # now, or those of an hour could fill the disk
        storage.current().delete(storage.key_of(account_id, former_id))
    return export


def get(export_id: str, *, by: Principal) -> AccountExport:
    """An export of the account. Raises NotFound, also after it has expired."""
    key = (by.require_account_id(), export_id.lower())
    export = db.db.session.get(AccountExport, key)
    if export is None or export.state == ExportState.EXPIRED:
        raise NotFound("There is no such export.")
    return export


def ready(export_id: str, *, by: Principal) -> AccountExport:
    """An export whose bundle can be fetched. Raises NotFound, Conflict, Forbidden."""
    export = get(export_id, by=by)
    account_id = _authorized(by)
    if export.status != ExportState.READY:
        raise Conflict(NOT_READY)
    _note_read(account_id, by)
    return export


def page(args: Query, *, by: Principal) -> tuple[list[AccountExport], int]:
    """The exports of the account, the newest first, also those that have expired; and how many."""
    mine = AccountExport.account_id == by.require_account_id()
    newest = sa.select(AccountExport).where(mine).order_by(AccountExport.id.desc())
    total = db.db.session.scalar(sa.select(sa.func.count(AccountExport.id)).where(mine)) or 0
    found = db.db.session.scalars(newest.offset(args["skip"]).limit(args["limit"])).all()
    return list(found), total


def delete(export_id: str, *, by: Principal) -> None:
    """Delete an export with its bundle; one under way ends. Raises NotFound."""
    export = get(export_id, by=by)
    storage.current().delete(storage.key_of(export.account_id, export.id))
    with db.transaction() as session:
        session.delete(get(export_id, by=by))


@dataclass(frozen=True)
class Contents:
    """The numbers of rows and bytes that a bundle of an account would have."""

    records: int
    record_bytes: int
    files: int
    file_bytes: int
    users: int


def contents(*, by: Principal) -> Contents:
    """Count what a bundle of the account would have."""
    account_id = by.require_account_id()
    of_records = RecordCount.account_id == account_id
    of_files = (StoredFile.account_id == account_id, StoredFile.removed_at.is_(None))
    counted = (
        sa.select(sa.func.sum(RecordCount.records)).where(of_records),
        sa.select(sa.func.sum(RecordCount.bytes)).where(of_records),
        sa.select(sa.func.count(StoredFile.id)).where(*of_files),
        sa.select(sa.func.sum(StoredFile.size)).where(*of_files),
        sa.select(sa.func.count(User.id)).where(User.account_id == account_id),
    )
    row = db.connection().execute(sa.select(*(one.scalar_subquery() for one in counted))).one()
    return Contents(*(int(value or 0) for value in row))


def expected_lines(contents: Contents, *, by: Principal) -> int:
    """About how many lines the bundle of the account would have, for the progress of an export."""
    changes = AuditChange.account_id == by.require_account_id()
    logged = counts.count_up_to(AuditChange, [changes], MOST_COUNTED)
    pieces = contents.files + contents.file_bytes // frames.FRAME_BYTES
    return contents.records + contents.files + contents.users + logged + pieces


def may_export(by: Principal) -> bool:
    """Whether a caller may export accounts, after a recent sign-in."""
    return PII_GROUP in by.groups


class Bundle(NamedTuple):
    """A bundle as the responses with files take it."""

    account_id: str
    id: str
    name: str
    mime_type: str
    size: int
    sha256: str


def file_name(slug: str, export: AccountExport) -> str:
    """The name of the file with the export of an account."""
    return f"{slug}-{export.created_at:%Y-%m-%d}.{export.format}"


def as_file(export: AccountExport, *, by: Principal) -> Bundle:
    """The bundle of an export that is ready."""
    name = file_name(by.account.slug if by.account else "account", export)
    size, sha256 = export.size or 0, export.sha256 or ""
    return Bundle(export.account_id, export.id, name, MIME_TYPE, size, sha256)


def _authorized(by: Principal) -> str:
    by.require_recent_sign_in()
    if not may_export(by):
        raise Forbidden(NEEDS_PII)
    return by.require_account_id()


def _note_read(account_id: str, by: Principal) -> None:
    # Both as it is ordered and as it is fetched: in between, records and people may change.
    with reads.by_path("bundle"):
        for one in exporting.personal_collections(account_id):
            reads.note(one, by, account_id, (), one.personal)


@jobs.job(KIND, attempts=3, is_long=True)
def run(payload: JSONMapping) -> None:
    account_id, export_id = payload["account_id"], payload["export_id"]
    if not _change(account_id, export_id, status=ExportState.RUNNING, lines=0):
        return  # deleted, or expired
    try:
        with _incoming() as path:
            _write(path, payload)
            with path.open("rb") as source:
                sha256 = hashlib.file_digest(source, "sha256").hexdigest()
            stored = {"size": path.stat().st_size, "sha256": sha256}
            storage.current().put(storage.key_of(account_id, export_id), path, {})
    except (AppError, OSError) as error:
        message = error.message if isinstance(error, AppError) else FAILURE
        _change(
            account_id, export_id, status=ExportState.FAILED, error=message, finished_at=clock.now()
        )
        log.error("export failed", account=account_id, error=type(error).__name__)
        return
    now = clock.now()
    done = {"status": ExportState.READY, "finished_at": now, "expires_at": now + LIFETIME, **stored}
    if not _change(account_id, export_id, **done):
        storage.current().delete(storage.key_of(account_id, export_id))


@contextmanager
def _incoming() -> Iterator[Path]:
    """A file beside the uploads under way; what a kill leaves is removed with them."""
    with tempfile.NamedTemporaryFile(dir=storage.incoming(), delete=False) as file:
        path = Path(file.name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, payload: JSONMapping) -> None:
    account_id = payload["account_id"]
    show = partial(_show, account_id, payload["export_id"])
    snapshot.seal_events(account_id)
    with path.open("wb") as target:
        if "key" in payload:
            key = bytes.fromhex(crypto.decrypt(payload["key"]))
            exporting.write(account_id, target, payload["header"], key, show)
            return
        export = db.db.session.get_one(AccountExport, (account_id, payload["export_id"]))
        by = principals.for_user_in_account(account_id, export.requested_by)
        if by is None or not may_export(by):
            raise Forbidden(NEEDS_PII)
        db.db.session.rollback()  # it may take long
        readable.write(account_id, target, show, by=by)


def _show(account_id: str, export_id: str, lines: int) -> None:
    free = storage.free_bytes()
    if free is not None and free < LEFT_FREE:
        raise Unavailable(storage.FULL)
    if lines % 10_000 == 0:
        _change(account_id, export_id, lines=lines)


def _change(account_id: str, export_id: str, **values: object) -> bool:
    own = (EXPORTS.c.account_id == account_id, EXPORTS.c.id == export_id)
    with db.transaction():
        changed = sa.update(EXPORTS).where(*own, IS_UNDER_WAY).values(**values)
        return bool(db.connection().execute(changed).rowcount)


@jobs.periodic(3600, "accounts.expire_exports")
def expire(payload: JSONMapping) -> None:
    """Delete expired bundles, first the bytes; the rows follow after `LISTED`."""
    expired = EXPORTS.c.expires_at <= clock.now()
    query = sa.select(EXPORTS.c.account_id, EXPORTS.c.id).where(expired, NOT_EXPIRED)
    for account_id, export_id in db.connection().execute(query).all():
        storage.current().delete(storage.key_of(account_id, export_id))
        own = (EXPORTS.c.account_id == account_id, EXPORTS.c.id == export_id, expired)
        with tenancy.in_account(account_id), db.transaction() as session:
            session.execute(sa.update(EXPORTS).where(*own).values(status=ExportState.EXPIRED))
    old = EXPORTS.c.expires_at <= clock.now() - LISTED
    db.purge(EXPORTS, ~NOT_EXPIRED, old)
