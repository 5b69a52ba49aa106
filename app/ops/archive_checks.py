"""Compares the archive of uploaded files with the restored rows that name them.

Both are read once, sorted by key. A file that differs is looked up in the service: what was removed
since the snapshot, or is not otherwise in the folder itself, is no fault of the backup.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import sqlalchemy as sa
from flask import Flask

from app import db
from app.context import tenancy
from app.files import storage
from app.files.models import FILES
from app.ops import backups, progress
from app.ops.pg_programs import BackupError

ROWS_PER_READ = 1000
KEY = sa.tuple_(FILES.c.account_id, FILES.c.id)
Digest = str | None  # None if there is no such file
Row = tuple[str, str]  # the key and the checksum


def check(archive: Path | None, service: Flask) -> tuple[int, int]:
    """Count the archived files that rows name, and those that the service itself lacks.

    Raises BackupError if one is missing in the archive only, or differs.
    """
    with service.app_context():
        if not isinstance(storage.current(), storage.Folder):
            return 0, 0
    count = missing = 0
    with progress.shown("Files compared") as show:
        doubtful = dict[str, Digest]()
        for (key, expected), found in _pairs(archive):
            if found == expected:
                count += 1
            else:
                doubtful[key] = found
            if len(doubtful) == ROWS_PER_READ:
                missing += _missing_in_service(doubtful, service)
                doubtful = {}
            show(count, 0)
        missing += _missing_in_service(doubtful, service)
    return count, missing


def _pairs(archive: Path | None) -> Iterator[tuple[Row, Digest]]:
    """Each row that names a file, with the checksum of that file in the archive."""
    contents = _archived(archive)
    key, digest = next(contents, ("", None))
    for row in _rows():
        while key and key < row[0]:
            key, digest = next(contents, ("", None))
        yield row, digest if key == row[0] else None


def _archived(archive: Path | None) -> Iterator[tuple[str, Digest]]:
    if archive is None:
        return
    try:
        with tarfile.open(archive) as source:
            for key, content in backups.archived(source):
                yield key, _sha256(content)
    except tarfile.TarError as error:
        raise BackupError(f"{archive} cannot be read: {error}") from error


def _rows() -> Iterator[Row]:
    columns = sa.select(FILES.c.account_id, FILES.c.id, FILES.c.sha256)
    query = columns.where(FILES.c.removed_at.is_(None)).order_by(FILES.c.account_id, FILES.c.id)
    after = ("", "")
    while rows := db.connection().execute(query.where(after < KEY).limit(ROWS_PER_READ)).all():
        yield from ((storage.key_of(row.account_id, row.id), row.sha256) for row in rows)
        after = (rows[-1].account_id, rows[-1].id)


def _missing_in_service(doubtful: Mapping[str, Digest], service: Flask) -> int:
    keys = [tuple(key.split("/")) for key in doubtful]
    present = sa.select(FILES.c.account_id, FILES.c.id).where(
        KEY.in_(keys), FILES.c.removed_at.is_(None)
    )
    with service.app_context(), tenancy.across_accounts():
        named = [storage.key_of(*row) for row in db.connection().execute(present)] if keys else []
        for key in named:
            digest: Digest = None
            with suppress(storage.Missing):
                if content := storage.current().open(key):
                    with content:
                        digest = _sha256(content)
            if digest != doubtful[key]:
                raise BackupError(f"the uploaded file {key} is not in the archive as it is stored")
    return len(named)


def _sha256(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := content.read(backups.CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
