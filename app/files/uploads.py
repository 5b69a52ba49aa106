"""Receives uploads: streamed to a temporary file, then moved to the storage, then recorded."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from app import clock, config, db
from app.auth.principal import Principal
from app.errors import PayloadTooLarge, TooManyRequests, Unavailable
from app.files import content, storage
from app.files.models import FILES, StoredFile
from app.files.storage import Storage
from app.ids import new_id
from app.usage import quotas
from app.usage.meters import FILE_BYTES

TAKEN_WITHIN = timedelta(hours=24)
MAX_UNTAKEN = 1000  # uploads of an account that no record has taken
MAX_UNTAKEN_SIZE = 20  # times the largest file
LEFT_FREE = 64 * 2**20  # bytes of the disk
CHECK_EVERY = 16 * 2**20
RETRY_SECONDS = 3600
TOO_MANY = "Too many uploads of this account wait for a record to take them. Use or delete some."


class Upload:
    """A file on its way in."""

    def __init__(self, place: Storage, name: str | None) -> None:
        self.id, self.name = new_id(), content.clean_name(name)
        self.size, self._most = 0, config.current().file_max_bytes
        self._place, self._digest, self._head = place, hashlib.sha256(), b""
        self._next_check = 0
        descriptor, path = tempfile.mkstemp(prefix="upload-", dir=storage.incoming())
        self.path, self._file = Path(path), os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> int:
        """Add bytes. Raises PayloadTooLarge, and Unavailable if the disk is full."""
        self.size += len(data)
        if self.size > self._most:
            raise PayloadTooLarge(f"A file has at most {self._most:,} bytes.")
        if self.size > self._next_check:
            self._next_check = self.size + CHECK_EVERY
            left = storage.free_bytes()
            if left is not None and left < LEFT_FREE:
                raise Unavailable(storage.FULL)
        if len(self._head) < content.HEAD_BYTES:
            self._head = (self._head + data)[: content.HEAD_BYTES]
        self._digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            raise Unavailable(storage.FULL) from error

    def seek(self, *position: int) -> int:
        """End the file, which nobody reads: what writes it rewinds it when it is complete."""
        try:
            self._file.close()  # now, as a request may bring many
        except OSError as error:
            raise Unavailable(storage.FULL) from error
        return 0

    def close(self) -> None:
        """Remove what has not been stored."""
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)

    def store(self, account_id: str) -> str:
        """Move the bytes to the storage; returns the type of the file."""
        mime_type = content.mime_type(self._head, self.name)
        self.seek(0)
        headers = {
            "Content-Type": mime_type,
            "Content-Disposition": content.disposition(mime_type, self.name),
        }
        self._place.put(storage.key_of(account_id, self.id), self.path, headers)
        return mime_type

    @property
    def sha256(self) -> str:
        """The digest of the bytes."""
        return self._digest.hexdigest()


@contextmanager
def receiving() -> Iterator[list[Upload]]:
    """The uploads of a request, whose temporary files do not outlive the block."""
    uploads = list[Upload]()
    try:
        yield uploads
    finally:
        for upload in uploads:
            upload.close()


def start(name: str | None) -> Upload:
    """Begin an upload."""
    try:
        return Upload(storage.current(), name)
    except OSError as error:
        raise Unavailable(storage.UNAVAILABLE) from error


def store(uploads: Sequence[Upload], by: Principal) -> list[StoredFile]:
    """Store uploads of the caller, which records may take from now on.

    Raises TooManyRequests and QuotaExceeded.
    """
    account_id, now = by.require_account_id(), clock.now()
    size, limits = sum(one.size for one in uploads), by.account.quotas if by.account else ()
    quotas.check(account_id, limits, FILE_BYTES, size)
    _check_untaken(account_id, size, len(uploads))
    files = [
        StoredFile(
            account_id=account_id,
            id=one.id,
            name=one.name,
            size=one.size,
            mime_type=one.store(account_id),
            sha256=one.sha256,
            uploaded_by=by.user_id,
            created_at=now,
        )
        for one in uploads
    ]
    try:
        with db.transaction() as session:
            session.add_all(files)
            session.flush()
            # Other uploads may have ended meanwhile; these are counted by now.
            quotas.check(account_id, limits, FILE_BYTES, 0)
            for file in files:
                session.expunge(file)
    except quotas.QuotaExceeded:
        for file in files:
            storage.current().delete(storage.key_of(account_id, file.id))
        raise
    return files


def _check_untaken(account_id: str, size: int, count: int) -> None:
    untaken = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(FILES.c.size), 0)).where(
        FILES.c.account_id == account_id, FILES.c.record_id.is_(None)
    )
    number, taken = db.connection().execute(untaken).one()
    most = MAX_UNTAKEN_SIZE * config.current().file_max_bytes
    if number + count > MAX_UNTAKEN or taken + size > most:
        raise TooManyRequests(RETRY_SECONDS, TOO_MANY)
