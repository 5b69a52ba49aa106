"""Proved backups: restored into a scratch database, counted, and their chains verified.

A backup counts as proved by `<file>.proof.json`, which is written last: with the rows of each table
in the snapshot that was saved, and the checksums of the files.

The archive of uploaded files is compared with the restored rows that name them: both are read once,
sorted by key. A file that differs is looked up in the service: what was removed since the snapshot,
or is not otherwise in the folder itself, is no fault of the backup.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

import orjson
import sqlalchemy as sa
from flask import Flask

from app import clock, config, db
from app.audit.chain import verify
from app.audit.log import AUDIT
from app.audit.security_log import service as security_log
from app.context import tenancy
from app.db import engine
from app.files import storage
from app.files.models import FILES
from app.ops import backups, command, scratch
from app.ops.backups import BackupError, Saved

ALTERED = "{} was altered since it was proved: restore another backup"
ROWS_PER_READ = 1000
KEY = sa.tuple_(FILES.c.account_id, FILES.c.id)


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
    with scratch.database() as settings:
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


def check_archive(archive: Path | None, service: Flask) -> tuple[int, int]:
    """Count the archived files that rows name, and those that the service itself lacks.

    Raises BackupError if one is missing in the archive only, or differs.
    """
    with service.app_context():
        if not isinstance(storage.current(), storage.Folder):
            return 0, 0
    count = missing = 0
    doubtful = dict[str, str | None]()
    with command.progress("Files compared") as show:
        for key, expected, archived in _named_files(archive):
            if archived == expected:
                count += 1
            else:
                doubtful[key] = archived
            if len(doubtful) == ROWS_PER_READ:
                missing += _missing_in_service(doubtful, service)
                doubtful.clear()
            show(count, 0)
        missing += _missing_in_service(doubtful, service)
    return count, missing


def _named_files(archive: Path | None) -> Iterator[tuple[str, str, str | None]]:
    """Each file that a row names: its key, its checksum, and that of the archived file, if any."""
    archived = _checksums(archive) if archive else iter(())
    key, checksum = next(archived, ("", None))
    columns = sa.select(FILES.c.account_id, FILES.c.id, FILES.c.sha256)
    query = columns.where(FILES.c.removed_at.is_(None)).order_by(FILES.c.account_id, FILES.c.id)
    after = ("", "")
    while rows := db.connection().execute(query.where(after < KEY).limit(ROWS_PER_READ)).all():
        for row in rows:
            named = storage.key_of(row.account_id, row.id)
            while key and key < named:
                key, checksum = next(archived, ("", None))
            yield named, row.sha256, checksum if key == named else None
        after = (rows[-1].account_id, rows[-1].id)


def _checksums(archive: Path) -> Iterator[tuple[str, str | None]]:
    """The keys of archived files with their checksums, sorted."""
    try:
        with tarfile.open(archive) as source:
            for key, content in backups.archived(source):
                yield key, backups.checksum_of(content)
    except tarfile.TarError as error:
        raise BackupError(f"{archive} cannot be read: {error}") from error


def _missing_in_service(doubtful: Mapping[str, str | None], service: Flask) -> int:
    """Count the files, of those archived otherwise, that the service still names and lacks as well.

    Raises BackupError if it has one, or has it otherwise.
    """
    keys = [tuple(key.split("/")) for key in doubtful]
    present = sa.select(FILES.c.account_id, FILES.c.id).where(
        KEY.in_(keys), FILES.c.removed_at.is_(None)
    )
    with service.app_context(), tenancy.across_accounts():
        named = [storage.key_of(*row) for row in db.connection().execute(present)] if keys else []
        for key in named:
            stored: str | None = None
            with suppress(storage.Missing):
                if content := storage.current().open(key):
                    with content:
                        stored = backups.checksum_of(content)
            if stored != doubtful[key]:
                raise BackupError(f"the uploaded file {key} is not in the archive as it is stored")
    return len(named)
