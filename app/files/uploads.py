"""Receives uploads: streamed to a temporary file, then moved to the storage, then recorded."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from app import clock, config, db, jobs
from app.accounts.usage import quotas
from app.accounts.usage.models import FILE_BYTES
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.errors import Forbidden, PayloadTooLarge, TooManyRequests, Unavailable
from app.files import content, storage
from app.files.models import FILES, StoredFile
from app.files.service import REMOVE, waiting, waiting_for
from app.files.storage import Storage
from app.ids import new_id

TAKEN_WITHIN = timedelta(hours=24)
# Uploads that no record has taken, and their bytes in largest files: of a user, and of an account.
MAX_UNTAKEN_OF_USER, MAX_USER_SIZE = 100, 5
MAX_UNTAKEN, MAX_ACCOUNT_SIZE = 1000, 20
CHECK_EVERY = 16 * 2**20
RETRY_SECONDS = 3600
TOO_MANY_OF_USER = "Too many of your uploads wait for a record to take them. Use or delete some."
TOO_MANY = "Too many uploads of this account wait for a record to take them. Use or delete some."
NO_FILE_FIELD = "You may not write a file field of any collection."


class Upload:
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
            if left is not None and left < storage.LEFT_FREE:
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
        self.seek(0)
        mime_type = content.mime_type(self.path, self._head, self.name)
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


def check_may_upload(by: Principal) -> None:
    """Raise Forbidden unless the caller may write a file field of some collection."""
    for definition in definitions.get_all() if by.signed_in else ():
        for operation in ("create", "update") if definition.files else ():
            access = accesses.if_open(by, definition, operation)
            if access and access.writable & definition.files.keys():
                return
    raise Forbidden(NO_FILE_FIELD)


def store(uploads: Sequence[Upload], by: Principal, *, with_record: bool) -> list[StoredFile]:
    """Store uploads of the caller, which records may take from now on.

    Those that come with their record do not wait for one: the request deletes what it leaves over.
    Raises TooManyRequests and QuotaExceeded.
    """
    account_id, now = by.require_account_id(), clock.now()
    size, limits = sum(one.size for one in uploads), by.account.quotas if by.account else ()
    quotas.check(account_id, limits, FILE_BYTES, size)
    if by.user_id is not None:
        _check_untaken(by, *((0, 0) if with_record else (len(uploads), size)))
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


def _check_untaken(by: Principal, count: int, size: int) -> None:
    """Raise TooManyRequests if the caller's or the account's uploads would be too many."""
    account_id = by.require_account_id()
    own = FILES.c.uploaded_by == by.user_id
    number, bytes_ = sa.func.count(), sa.func.coalesce(sa.func.sum(FILES.c.size), 0)
    of_user = (number.filter(own), sa.func.coalesce(sa.func.sum(FILES.c.size).filter(own), 0))
    query = sa.select(*of_user, number, bytes_).where(*waiting(account_id))
    user_count, user_size, all_count, all_size = db.connection().execute(query).one()
    largest = config.current().file_max_bytes
    if user_count + count > MAX_UNTAKEN_OF_USER or user_size + size > MAX_USER_SIZE * largest:
        raise TooManyRequests(RETRY_SECONDS, TOO_MANY_OF_USER)
    is_too_much = all_count + count > MAX_UNTAKEN or all_size + size > MAX_ACCOUNT_SIZE * largest
    if count and is_too_much:
        raise TooManyRequests(RETRY_SECONDS, TOO_MANY)


def page(by: Principal, skip: int, limit: int) -> tuple[Sequence[StoredFile], int]:
    """A page of the uploads that no record has taken, newest first, and their number."""
    which = waiting_for(by)
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(FILES).where(*which)) or 0
    newest = sa.select(StoredFile).where(*which).order_by(StoredFile.id.desc())
    return db.db.session.scalars(newest.offset(skip).limit(limit)).all(), total


class Waiting(NamedTuple):
    """The uploads of a user that wait for a record."""

    user_id: str | None
    number: int
    size: int
    newest_at: datetime


def waiting_by_user(account_id: str, limit: int) -> list[Waiting]:
    """The users with uploads that wait for a record, those with the most first."""
    number = sa.func.count()
    newest = sa.func.max(FILES.c.created_at)
    columns = (FILES.c.uploaded_by, number, sa.func.sum(FILES.c.size), newest)
    query = sa.select(*columns).where(*waiting(account_id)).group_by(FILES.c.uploaded_by)
    found = db.connection().execute(query.order_by(number.desc()).limit(limit))
    return [Waiting(user, count, int(size), at) for user, count, size, at in found]


def discard_of_user(account_id: str, user_id: str) -> int:
    """Delete the uploads of a user that no record has taken; returns their number."""
    own = (*waiting(account_id), FILES.c.uploaded_by == user_id)
    with db.transaction():
        statement = sa.update(FILES).where(*own).values(removed_at=clock.now())
        count = db.connection().execute(statement).rowcount
        if count:
            jobs.enqueue(REMOVE, {}, account_id=account_id)
    return count
