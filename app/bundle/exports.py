"""Exports by admins of an account: a job writes the bundle, which can be fetched for a day."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from app import clock, crypto, db, jobs
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID
from app.auth.principal import Principal
from app.bundle import exporting, frames
from app.bundle.models import FAILED, PENDING, READY, RUNNING, AccountExport
from app.errors import AppError, Conflict, Forbidden, NotFound, Unavailable
from app.files import storage, upkeep, uploads
from app.security import reads
from app.types import JSONMapping

log = structlog.get_logger()
LIFETIME = timedelta(days=1)
UNDER_WAY = "An export of this account is under way. Wait until it has ended."
SYSTEM = "The system account cannot be exported."
NOT_READY = "The export is not ready. Its status says how far it is."
NEEDS_PII = "A bundle has personal data unmasked: it needs the group pii_access."
FAILURE = "The export failed. Start another one; if it fails again, contact the operator."
KIND = "accounts.export"
LEFT_FREE = 4 * uploads.LEFT_FREE  # as it is looked at less often
MIME_TYPE = "application/octet-stream"
EXPORTS = db.Base.metadata.tables[AccountExport.__tablename__]
upkeep.BLOB_TABLES.append(EXPORTS)


def start(passphrase: str, *, by: Principal) -> AccountExport:
    """Enqueue the export of the account.

    Former exports end. Raises Forbidden, or Conflict while another one is under way.
    """
    account_id = _authorized(by)
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Conflict(SYSTEM)
    header = frames.new_header()
    key = frames.derive_key(passphrase, header)  # before the transaction, as it takes a moment
    mine = EXPORTS.c.account_id == account_id
    with db.transaction() as session:
        accounts.get_for_update(account_id)  # one at a time
        under_way = (EXPORTS.c.status.in_((PENDING, RUNNING)), EXPORTS.c.expires_at > clock.now())
        if session.scalar(sa.select(EXPORTS.c.id).where(mine, *under_way).limit(1)):
            raise Conflict(UNDER_WAY)
        ended = sa.update(EXPORTS).where(mine).values(expires_at=clock.now())
        former = db.connection().scalars(ended.returning(EXPORTS.c.id)).all()
        export = AccountExport(
            account_id=account_id,
            requested_by=by.user_id or "",
            expires_at=clock.now() + LIFETIME,
        )
        session.add(export)
        session.flush()
        _note_read(account_id, by)
        payload = {"export_id": export.id, "header": header, "key": crypto.encrypt(key.hex())}
        jobs.enqueue(KIND, {"account_id": account_id, **payload}, account_id=account_id)
    for former_id in former:  # now, or those of an hour could fill the disk
        storage.current().delete(storage.key_of(account_id, former_id))
    return export


def get(export_id: str, *, by: Principal) -> AccountExport:
    """An export of the account. Raises NotFound, also after it has expired."""
    key = (by.require_account_id(), export_id.lower())
    export = db.db.session.get(AccountExport, key)
    if export is None or export.expires_at <= clock.now():
        raise NotFound("There is no such export.")
    return export


def ready(export_id: str, *, by: Principal) -> AccountExport:
    """An export whose bundle can be fetched. Raises NotFound, Conflict, Forbidden."""
    export = get(export_id, by=by)
    account_id = _authorized(by)
    if export.status != READY:
        raise Conflict(NOT_READY)
    _note_read(account_id, by)
    return export


class Bundle(NamedTuple):
    """A bundle as the responses with files take it."""

    account_id: str
    id: str
    name: str
    mime_type: str
    size: int
    sha256: str


def as_file(export: AccountExport) -> Bundle:
    """The bundle of an export that is ready."""
    name = f"{export.created_at:%Y-%m-%d}.bundle"
    size, sha256 = export.size or 0, export.sha256 or ""
    return Bundle(export.account_id, export.id, name, MIME_TYPE, size, sha256)


def _authorized(by: Principal) -> str:
    by.require_recent_sign_in()
    if PII_GROUP not in by.groups:
        raise Forbidden(NEEDS_PII)
    return by.require_account_id()


def _note_read(account_id: str, by: Principal) -> None:
    # Both as it is ordered and as it is fetched: in between, records and people may change.
    for one in exporting.personal_collections(account_id):
        reads.note(one, by, account_id, (), one.personal, path="bundle")


@jobs.job(KIND, attempts=3, is_long=True)
def run(payload: JSONMapping) -> None:
    """Write the bundle of an export."""
    account_id, export_id = payload["account_id"], payload["export_id"]
    if not _change(account_id, export_id, status=RUNNING, lines=0):
        return
    try:
        with _incoming() as path:
            _write(path, payload)
            stored = {"size": path.stat().st_size, "sha256": _sha256(path)}
            storage.current().put(storage.key_of(account_id, export_id), path, {})
    except (AppError, OSError) as error:
        message = error.message if isinstance(error, AppError) else FAILURE
        _change(account_id, export_id, status=FAILED, error=message, finished_at=clock.now())
        log.error("export failed", account=account_id, error=type(error).__name__)
        return
    now = clock.now()
    done = {"status": READY, "finished_at": now, "expires_at": now + LIFETIME, **stored}
    _change(account_id, export_id, **done)


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
    account_id, export_id = payload["account_id"], payload["export_id"]
    key = bytes.fromhex(crypto.decrypt(payload["key"]))
    with path.open("wb") as target:
        exporting.write(
            account_id,
            target,
            payload["header"],
            key,
            lambda lines: _show(account_id, export_id, lines),
        )


def _show(account_id: str, export_id: str, lines: int) -> None:
    free = storage.free_bytes()
    if free is not None and free < LEFT_FREE:
        raise Unavailable(storage.FULL)
    if lines % 10_000 == 0:
        _change(account_id, export_id, lines=lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _change(account_id: str, export_id: str, **values: object) -> bool:
    own = (EXPORTS.c.account_id == account_id, EXPORTS.c.id == export_id)
    with db.transaction():
        result = db.connection().execute(sa.update(EXPORTS).where(*own).values(**values))
        return bool(result.rowcount)


@jobs.periodic(3600, "accounts.expire_exports")
def expire(payload: JSONMapping) -> None:
    """Delete expired bundles: first the bytes, then the row."""
    expired = EXPORTS.c.expires_at <= clock.now()
    rows = db.connection().execute(sa.select(EXPORTS.c.account_id, EXPORTS.c.id).where(expired))
    for account_id, export_id in rows.all():
        storage.current().delete(storage.key_of(account_id, export_id))
    db.purge(EXPORTS, expired)
