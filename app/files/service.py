"""Finds files, deletes uploads that no record has, and reads their bytes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any, BinaryIO

import sqlalchemy as sa
import structlog

from app import clock, db, jobs
from app.auth.principal import Principal
from app.errors import NotFound, Unavailable
from app.files import storage
from app.files.models import FILES

log = structlog.get_logger()

NO_FILE = "There is no such file."
REMOVE = "files.remove"
File = Any
"""A row of `files`."""


def find(file_id: str, account_id: str | None) -> File:
    """A file that is not removed; None if there is none."""
    mine = [] if account_id is None else [FILES.c.account_id == account_id]
    query = sa.select(FILES).where(FILES.c.id == file_id.lower(), FILES.c.removed_at.is_(None))
    return db.connection().execute(query.where(*mine)).first()


def is_own_upload(file: File, by: Principal) -> bool:
    """Whether the caller uploaded a file that no record has taken."""
    return file.record_id is None and by.user_id is not None and file.uploaded_by == by.user_id


def waiting(account_id: str) -> list[sa.ColumnElement[bool]]:
    """The condition of an account's uploads that no record has taken."""
    mine = FILES.c.account_id == account_id
    return [mine, FILES.c.record_id.is_(None), FILES.c.removed_at.is_(None)]


def waiting_for(by: Principal) -> list[sa.ColumnElement[bool]]:
    """The condition of those that the caller may list and delete: admins all, others their own."""
    which = waiting(by.require_account_id())
    if not by.is_admin or by.scopes is not None:
        which.append(FILES.c.uploaded_by == by.user_id)
    return which


def discard(file_id: str, by: Principal) -> None:
    """Delete an upload that no record has taken: of the caller, for admins of anybody.

    Raises NotFound.
    """
    statement = sa.update(FILES).where(FILES.c.id == file_id.lower(), *waiting_for(by))
    with db.transaction() as session:
        marked = session.connection().execute(statement.values(removed_at=clock.now()))
        if not marked.rowcount:
            raise NotFound(NO_FILE)
        jobs.enqueue(REMOVE, {}, account_id=by.require_account_id())


def forget(file_ids: Collection[str], account_id: str) -> None:
    """Delete those uploads of a request that no record has taken."""
    is_untaken = (FILES.c.record_id.is_(None), FILES.c.account_id == account_id)
    with db.transaction() as session:
        statement = sa.update(FILES).where(FILES.c.id.in_(file_ids), *is_untaken)
        if session.connection().execute(statement.values(removed_at=clock.now())).rowcount:
            jobs.enqueue(REMOVE, {}, account_id=account_id)


def read(file: File, start: int, length: int) -> Iterator[bytes]:
    """The bytes of a part of a file. Raises NotFound, Unavailable."""
    if length == 0:
        return iter(())
    try:
        parts = storage.current().read(storage.key_of(file.account_id, file.id), start, length)
        first = next(parts, b"")  # now, while errors can be answered
        if len(first) < min(length, storage.CHUNK):
            raise _damaged(file)
        rest = parts if len(first) < length else list(parts)
        return chain([first], rest)
    except storage.Missing:
        raise NotFound(NO_FILE) from None


def open_blob(file: File) -> BinaryIO | None:
    """The bytes as a file of this machine; None if they are in a bucket.

    Raises NotFound, Unavailable.
    """
    try:
        blob = storage.current().open(storage.key_of(file.account_id, file.id))
    except storage.Missing:
        raise NotFound(NO_FILE) from None
    if blob and os.fstat(blob.fileno()).st_size != file.size:
        blob.close()
        raise _damaged(file)
    return blob


def _damaged(file: File) -> Unavailable:
    log.error("file is damaged", account=file.account_id, file=file.id)
    return Unavailable(storage.UNAVAILABLE)
