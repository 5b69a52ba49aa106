"""Proved backups: restored into a scratch database, counted, and their chains verified.

A backup counts as proved by `<file>.proof.json`, which is written last: with the rows of each table
in the snapshot that was saved, and the checksums of the files.

The archive of uploaded files is compared with the restored rows that name them: both are read once,
sorted by key. A file that differs is looked up in the service: what was removed since the snapshot,
or is not otherwise in the folder itself, is no fault of the backup.

Unfinished work has a folder that vanishes with it, also after its process was killed: it is locked
as long as its process lives, and whoever makes the next one beside it removes those that nobody
locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypedDict

import orjson
import psycopg2
import sqlalchemy as sa
from flask import Flask
from psycopg2 import sql

from app import clock, config, db
from app.audit.chain import verify
from app.audit.log import AUDIT
from app.audit.security_log import service as security_log
from app.config.settings import Config
from app.context import tenancy
from app.db import engine
from app.files import storage
from app.files.models import FILES
from app.ops import backups, command
from app.ops.backups import BackupError, Saved

ALTERED = "{} was altered since it was proved: restore another backup"
ROWS_PER_READ = 1000
KEY = sa.tuple_(FILES.c.account_id, FILES.c.id)
Digest = str | None  # None if there is no such file
Row = tuple[str, str]  # the key and the checksum
PREFIX, LOCK_FILE = "atrium-backup-", "lock"
UNLOCKED_SECONDS = 3600  # by then a folder has a lock, or its process was killed in between


class FilesProof(TypedDict):
    """The archive of uploaded files."""

    sha256: str
    size: int
    count: int
    missing: int
    """Files that the database names and the folder itself had lost, or has otherwise."""


class Proof(TypedDict):
    """The proof of a backup, as stored beside it."""

    proved_at: str
    instance: str
    """The address of the service, as several may have one place for their backups."""
    sha256: str
    size: int
    rows: int
    tables: dict[str, int]
    audit_entries: int
    files: FilesProof | None


def prove(path: Path, saved: Saved) -> Proof:
    """Prove that a backup holds what was saved; returns what is stored.

    Raises BackupError, and leaves no proof, if anything differs.
    """
    if not _is_unaltered(path, saved.sha256, saved.files_sha256):
        raise BackupError(f"{path} was altered since it was written")
    archive = backups.archive_of(path)
    with _restored(path) as service:
        _count(saved.rows)
        entries = _verify_chains()
        count, missing = check_archive(archive if saved.files_sha256 else None, service)
    files: FilesProof | None = None
    if saved.files_sha256:
        size = archive.stat().st_size
        files = {"sha256": saved.files_sha256, "size": size, "count": count, "missing": missing}
    proof: Proof = {
        "proved_at": clock.iso(clock.now()),
        "instance": config.current().base_url,
        "sha256": saved.sha256,
        "size": path.stat().st_size,
        "rows": sum(saved.rows.values()),
        "tables": dict(saved.rows),
        "audit_entries": entries,
        "files": files,
    }
    with backups.draft_of(backups.proof_of(path)) as draft:
        draft.write_bytes(orjson.dumps(proof, option=orjson.OPT_INDENT_2))
    return proof


def parse(text: bytes) -> Proof | None:
    """Parse a stored proof; None if it is not one."""
    try:
        proof = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(proof, dict) or not {"proved_at", "sha256"} <= proof.keys():
        return None
    complete: Any = {"files": None, "instance": "", "size": 0, **proof}  # of older releases
    stored: Proof = complete
    return stored


def load(path: Path) -> Proof | None:
    """Return the proof of a backup, if it has one. Raises BackupError if it is unreadable."""
    try:
        proof = parse(backups.proof_of(path).read_bytes())
    except FileNotFoundError:
        return None
    if proof is None:
        raise BackupError(f"{backups.proof_of(path)} is not a proof")
    return proof


def require_unaltered(path: Path) -> Proof | None:
    """Return the proof of a backup, if it has one. Raises BackupError if it proves other files."""
    proof = load(path)
    if proof is None:
        return None
    files = proof["files"]
    if not _is_unaltered(path, proof["sha256"], files["sha256"] if files else None):
        raise BackupError(ALTERED.format(path))
    return proof


def _is_unaltered(path: Path, sha256: str, files_sha256: str | None) -> bool:
    archive = backups.archive_of(path)
    try:
        return backups.checksum(path) == sha256 and (
            files_sha256 is None or backups.checksum(archive) == files_sha256
        )
    except FileNotFoundError:
        return False


@contextmanager
def _restored(path: Path) -> Iterator[Flask]:
    """Restore a backup beside the service, which is yielded, and read it in the block."""
    service = config.running()
    with scratch_database() as settings:
        # An application that has a database and nothing else.
        app = Flask("app.ops.scratch", root_path=str(settings.instance_dir))
        app.extensions["atrium.config"] = settings
        db.init_app(app, settings)
        try:
            with app.app_context(), tenancy.across_accounts():
                backups.restore_database(path)
                yield service
        finally:
            with app.app_context():
                db.db.session.remove()
                engine.current_engine().dispose()


def _count(expected: Mapping[str, int]) -> None:
    """Compare the rows of each table; as their owner, from whom no policy hides any."""
    with command.progress("Tables counted") as show, tenancy.as_owner():
        for number, (name, rows) in enumerate(sorted(expected.items()), 1):
            found = db.connection().scalar(sa.select(sa.func.count()).select_from(sa.table(name)))
            if found != rows:
                raise BackupError(f"the table {name} has {found} rows after a restore, not {rows}")
            show(number, len(expected))


def _verify_chains() -> int:
    """Verify what was restored; returns the number of audit entries."""
    with command.progress("Entries verified") as show:
        audit = verify.verify_all(AUDIT, progress=lambda count: show(count, 0))
    for fault in verify.faults(audit):
        raise BackupError(f"the restored audit log is broken: {fault}")
    for account_id in security_log.account_ids(None):
        report = security_log.verify_chain(account_id)
        if not report["valid"]:
            raise BackupError(f"the restored security log of {account_id} is broken")
    checked: int = audit["checked"]
    return checked


FIND = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
# Advisory locks in the service's own database, to which every process that makes scratch databases
# for it has access.
LOCK = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
UNLOCK = "SELECT pg_advisory_unlock(%s, hashtext(%s))"
LOCK_CLASS = 0x41747269  # "Atri"


@contextmanager
def scratch_database() -> Iterator[Config]:
    """Yield the settings for an empty database, which is dropped at the end of the block.

    Raises BackupError if it cannot be created.
    """
    settings = replace(config.current(), redis_url="", otel_exporter_otlp_endpoint="")
    with work_folder(work_parent()) as folder:
        settings = replace(settings, instance_dir=folder)
        if engine.current_engine().dialect.name == "sqlite":
            yield replace(settings, database_url=f"sqlite:///{folder / 'scratch.db'}")
        else:
            with _postgres_database() as url:
                yield replace(settings, database_url=url)


@contextmanager
def _postgres_database() -> Iterator[str]:
    url = engine.current_engine().url
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    prefix = _prefix(str(url.database))
    name = f"{prefix}{secrets.token_hex(6)}"
    try:
        with closing(psycopg2.connect(address)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                _drop_abandoned(cursor, prefix)
                # Locked before it exists, for as long as this connection: that ends with the
                # process, and the next one drops the database.
                cursor.execute(LOCK, (LOCK_CLASS, name))
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                try:
                    yield url.set(database=name).render_as_string(hide_password=False)
                finally:
                    _drop(cursor, name)
    except psycopg2.Error as error:
        message = f"a scratch database is needed to prove a backup: {error}"
        raise BackupError(message) from error


def _prefix(database: str) -> str:
    # Names are cut at 63 bytes; the digest tells databases with a common beginning apart.
    digest = hashlib.sha256(database.encode()).hexdigest()[:8]
    return f"{database.encode()[:30].decode(errors='ignore')}_proof_{digest}"


def _drop_abandoned(cursor: Any, prefix: str) -> None:
    """Drop the scratch databases whose process has ended: nobody holds their lock."""
    cursor.execute(FIND, (prefix,))
    for (name,) in cursor.fetchall():
        if not re.fullmatch("[0-9a-f]{12}", name.removeprefix(prefix)):
            continue
        cursor.execute(LOCK, (LOCK_CLASS, name))
        if cursor.fetchone()[0]:
            _drop(cursor, name)
            cursor.execute(UNLOCK, (LOCK_CLASS, name))


def _drop(cursor: Any, name: str) -> None:
    cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def check_archive(archive: Path | None, service: Flask) -> tuple[int, int]:
    """Count the archived files that rows name, and those that the service itself lacks.

    Raises BackupError if one is missing in the archive only, or differs.
    """
    with service.app_context():
        if not isinstance(storage.current(), storage.Folder):
            return 0, 0
    count = missing = 0
    with command.progress("Files compared") as show:
        doubtful = dict[str, Digest]()
        for (key, expected), found in _file_pairs(archive):
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


def _file_pairs(archive: Path | None) -> Iterator[tuple[Row, Digest]]:
    """Each row that names a file, with the checksum of that file in the archive."""
    contents = _archived(archive)
    key, digest = next(contents, ("", None))
    for row in _file_rows():
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


def _file_rows() -> Iterator[Row]:
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


def work_parent() -> Path:
    """Return the folder of scratch databases and backups, which may be too large for /tmp."""
    path = config.current().instance_dir.resolve() / "backups"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end of the block."""
    remove_abandoned_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (folder / f"{LOCK_FILE}.new").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Named once it is locked: whoever finds the name unlocked knows that this one is gone.
            Path(file.name).rename(folder / LOCK_FILE)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders(parent: Path) -> None:
    """Remove what killed processes left over."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's
            if folder.stat().st_uid == os.geteuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return clock.now().timestamp() - folder.stat().st_mtime > UNLOCKED_SECONDS
