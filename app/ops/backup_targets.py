"""The place of scheduled backups: a folder, or a bucket of an S3-compatible service.

Each backup is three objects: `<name>`, `<name>.files.tar` if there are uploaded files, and
`<name>.proof.json`, which is written last. Without the proof it is no backup.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from app import clock, config
from app.errors import Unavailable
from app.files import storage
from app.ops import backup_proofs, backups, scratch
from app.ops.backup_proofs import Proof
from app.ops.backups import BackupError

NAME = re.compile(r"atrium-(\d{8}T\d{12}Z)-[0-9a-f]{4}\.backup")
TIME = "%Y%m%dT%H%M%S%fZ"
PART_OF_NAME = re.compile(rf"({NAME.pattern})(\.files\.tar|\.proof\.json)?")
FILE_MODE = 0o600
NOT_SET = "no place for backups is set: set SERVICE_BACKUP_TARGET"


@dataclass(frozen=True)
class StoredBackup:
    name: str
    made_at: datetime
    proof: Proof
    size: int


def new_name() -> str:
    """Return the name of a backup that is made now."""
    return f"atrium-{clock.now():{TIME}}-{secrets.token_hex(2)}.backup"


def current() -> Target:
    """Return the place of the settings. Raises BackupError if none is set."""
    url = config.current().backup_target
    if not url:
        raise BackupError(NOT_SET)
    return Target(url)


class Target:
    """A place of backups; its methods raise BackupError if it cannot be used."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.is_bucket = parts.scheme == "s3"
        self.address = f"s3://{parts.hostname}{parts.path}" if self.is_bucket else url
        """The address without credentials."""
        self._storage: storage.Storage = storage.Folder(Path(url), FILE_MODE)
        if self.is_bucket:
            self._storage = storage.Bucket(url)

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A folder in which a backup is made before it is published."""
        parent = scratch.parent_folder()
        if not self.is_bucket:
            if not Path(self.address).is_dir():
                raise BackupError(f"{self.address} is no folder: create it, or mount it")
            parent = Path(self.address) / storage.INCOMING  # on the same disk
            parent.mkdir(mode=0o700, exist_ok=True)
        with scratch.folder(parent) as folder:
            yield folder

    def publish(self, path: Path, proof: Proof) -> None:
        """Move a proved backup to this place, and compare what arrives there with the proof."""
        files, archive = proof["files"], backups.archive_of(path)
        with self._usable():
            if files:
                self._put(archive, files["sha256"])
            self._put(path, proof["sha256"])
            self._storage.put(backups.proof_of(path).name, backups.proof_of(path), {})

    def backups(self) -> list[StoredBackup]:
        """Return the backups that have a proof, the newest first."""
        with self._usable():
            sizes = self._sizes()
            found = (self._stored(name, sizes) for name in sizes if NAME.fullmatch(name))
            return sorted((one for one in found if one), key=lambda one: one.name, reverse=True)

    def is_unaltered(self, stored: StoredBackup) -> bool:
        """Whether the files of a backup are those that were proved."""
        with self._usable():
            sizes, files = self._sizes(), stored.proof["files"]
            expected = {stored.name: stored.proof["sha256"]}
            if files:
                expected[f"{stored.name}.files.tar"] = files["sha256"]
            return all(
                name in sizes and self._checksum(name, sizes[name]) == sha256
                for name, sha256 in expected.items()
            )

    def remove_unfinished(self) -> None:
        """Remove what a process that was killed has published in part."""
        with self._usable():
            sizes = self._sizes()
            finished = {one.name for one in self.backups()}
            for key in sizes:
                match = PART_OF_NAME.fullmatch(key)
                if match and match[1] not in finished:
                    self._storage.delete(key)

    def remove(self, name: str) -> None:
        """Remove a backup; first its proof."""
        with self._usable():
            for key in (f"{name}.proof.json", f"{name}.files.tar", name):
                self._storage.delete(key)

    def fetch(self, name: str, folder: Path) -> Path:
        """Return the path of a backup; one from a bucket is copied to the folder first."""
        if not self.is_bucket:
            return Path(self.address) / name
        with self._usable():
            for key, size in self._sizes().items():
                match = PART_OF_NAME.fullmatch(key)
                if match and match[1] == name:
                    with (folder / key).open("wb") as file:
                        file.writelines(self._storage.read(key, 0, size))
        return folder / name

    def _put(self, path: Path, sha256: str) -> None:
        size = path.stat().st_size
        self._storage.put(path.name, path, {})
        if self._checksum(path.name, size) != sha256:
            raise BackupError(f"{path.name} was altered on its way to {self.address}")

    def _sizes(self) -> dict[str, int]:
        blobs = self._storage.blobs()
        return {blob.key: blob.size for blob in blobs if PART_OF_NAME.fullmatch(blob.key)}

    def _stored(self, name: str, sizes: dict[str, int]) -> StoredBackup | None:
        key = f"{name}.proof.json"
        text = b"".join(self._storage.read(key, 0, sizes[key])) if key in sizes else b""
        proof, match = backup_proofs.parse(text), NAME.fullmatch(name)
        if proof is None or match is None:
            return None
        made_at = datetime.strptime(match[1], TIME).replace(tzinfo=UTC)
        return StoredBackup(name, made_at, proof, sizes[name] + sizes.get(f"{name}.files.tar", 0))

    def _checksum(self, key: str, size: int) -> str:
        digest = hashlib.sha256()
        for chunk in self._storage.read(key, 0, size):
            digest.update(chunk)
        return digest.hexdigest()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (Unavailable, storage.Missing, OSError) as error:
            cause = error.__cause__ or error
            reason = getattr(cause, "strerror", None) or type(cause).__name__
            raise BackupError(f"{self.address} cannot be used: {reason}") from error
