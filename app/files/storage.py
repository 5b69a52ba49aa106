"""Stores the bytes of files: in a folder, or a bucket of an S3-compatible service.

Keys are `<account id>/<file id>`, and `<account id>/thumbnails/<file id>/<size>`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

import structlog

from app import config
from app.errors import Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

log = structlog.get_logger()

CHUNK = 256 * 1024
PART, CONCURRENT_PARTS, MAX_PARTS = 8 * 2**20, 2, 10_000
REDIRECT_SECONDS = 60
INCOMING, THUMBNAILS = "incoming", "thumbnails"
LEFT_FREE = 64 * 2**20  # bytes of the disk
FOLDER_MODE, FILE_MODE = 0o750, 0o640  # for nginx, if it is in the group
INTERNAL = "/_files/"
"""The path at which nginx serves the folder to redirected requests, see deploy/nginx.conf."""
FULL = "The file storage is full. Contact the operator of this service."
UNAVAILABLE = "The file storage is briefly unavailable. Try again in a moment."


class Missing(Exception):
    """Raised if a blob does not exist."""


class Blob(NamedTuple):
    key: str
    modified_at: datetime
    size: int


class Storage(Protocol):
    """A place for blobs. Its methods raise Unavailable if it does not work."""

    def put(self, key: str, source: Path, headers: dict[str, str]) -> None:
        """Move a file to its key; it is durable afterwards."""
        ...

    def read(self, key: str, start: int, length: int) -> Iterator[bytes]:
        """The bytes of a part. Raises Missing."""
        ...

    def open(self, key: str) -> BinaryIO | None:
        """The blob as a file of this machine; None if it is elsewhere. Raises Missing."""
        ...

    def delete(self, key: str) -> None:
        """Delete a blob, if it exists."""
        ...

    def blobs(self, prefix: str = "") -> Iterator[Blob]:
        """All blobs whose keys begin with a prefix that ends with a slash."""
        ...

    def redirect(self, key: str) -> dict[str, str]:
        """The headers that have somebody else send the blob: nginx, or the S3 service."""
        ...


class Folder:
    """A folder, for processes on one machine."""

    def __init__(self, root: Path, file_mode: int = FILE_MODE) -> None:
        self.root, self._file_mode = root, file_mode

    def put(self, key: str, source: Path, headers: dict[str, str]) -> None:
        """Rename a file; its bytes and its name are on the disk afterwards."""
        target = self._path(key)
        with _available():
            is_first = not target.parent.exists()
            target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            source.chmod(self._file_mode)
            sync(source)
            source.rename(target)
            sync(target.parent)
            if is_first:
                sync(target.parent.parent)

    def read(self, key: str, start: int, length: int) -> Iterator[bytes]:
        return _part(self.open(key), start, length)

    def open(self, key: str) -> BinaryIO:
        with _available():
            try:
                return self._path(key).open("rb")
            except FileNotFoundError:
                raise Missing(key) from None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _available():
            path.unlink(missing_ok=True)
            if THUMBNAILS in key.split("/"):
                with suppress(OSError):  # there are others
                    path.parent.rmdir()

    def blobs(self, prefix: str = "") -> Iterator[Blob]:
        for folder, folders, names in os.walk(self._path(prefix) if prefix else self.root):
            if Path(folder) == self.root:
                folders[:] = [name for name in folders if name != INCOMING]
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    size = path.stat().st_size
                    yield Blob(path.relative_to(self.root).as_posix(), _modified_at(path), size)

    def redirect(self, key: str) -> dict[str, str]:
        """Have nginx send it."""
        return {"X-Accel-Redirect": INTERNAL + quote(key)}

    def _path(self, key: str) -> Path:
        path = self.root.joinpath(*key.split("/"))
        if ".." in path.parts or not path.is_relative_to(self.root):
            raise Missing(key)
        return path


def _modified_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _part(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    with file as opened:
        opened.seek(start)
        while length > 0 and (chunk := opened.read(min(CHUNK, length))):
            length -= len(chunk)
            yield chunk


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("file storage", error=type(error).__name__, errno=error.errno)
        raise Unavailable(FULL if error.errno in (28, 122) else UNAVAILABLE) from error


class Bucket:
    """A bucket of an S3-compatible service, or a part of it."""

    def __init__(self, url: str) -> None:
        self._store = _s3_store(url)

    def put(self, key: str, source: Path, headers: dict[str, str]) -> None:
        import obstore

        size = source.stat().st_size
        with _reachable():
            obstore.put(
                self._store,
                key,
                source,
                attributes=headers,
                chunk_size=max(PART, size // MAX_PARTS + 1),
                max_concurrency=CONCURRENT_PARTS,
                use_multipart=size > PART,
            )
        source.unlink()

    def read(self, key: str, start: int, length: int) -> Iterator[bytes]:
        """The bytes of a part, in requests of `PART` bytes."""
        import obstore

        try:
            with _reachable():
                for offset in range(start, start + length, PART):
                    size = min(PART, start + length - offset)
                    yield bytes(obstore.get_range(self._store, key, start=offset, length=size))
        except FileNotFoundError:
            raise Missing(key) from None

    def open(self, key: str) -> None:
        """It is elsewhere."""

    def delete(self, key: str) -> None:
        import obstore

        with _reachable(), suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def blobs(self, prefix: str = "") -> Iterator[Blob]:
        import obstore

        with _reachable():
            for page in obstore.list(self._store, prefix.rstrip("/") or None):
                for one in page:
                    yield Blob(one["path"], one["last_modified"], one["size"])

    def redirect(self, key: str) -> dict[str, str]:
        """Send the client to a signed address."""
        import obstore

        lifetime = timedelta(seconds=REDIRECT_SECONDS)
        return {"Location": obstore.sign(self._store, "GET", key, lifetime)}


@contextmanager
def _reachable() -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError from error
    except (BaseError, OSError) as error:
        log.error("file storage", error=type(error).__name__)
        raise Unavailable(UNAVAILABLE) from error


def _s3_store(url: str) -> S3Store:
    from obstore.store import S3Store

    parts, options = urlsplit(url), {k: v[0] for k, v in parse_qs(urlsplit(url).query).items()}
    settings: S3Config = {**options}  # type: ignore[typeddict-item]
    if parts.username:
        settings["access_key_id"] = unquote(parts.username)
        settings["secret_access_key"] = unquote(parts.password or "")
    return S3Store(
        parts.hostname,
        prefix=parts.path.strip("/") or None,
        config=settings,
        client_options={
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": "5s",
            "timeout": "60s",
        },
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
    )


def current() -> Storage:
    """The storage of the running application."""
    settings = config.current()
    return _storage(settings.files_url, settings.instance_dir.resolve())


@lru_cache(8)
def _storage(url: str, instance_dir: Path) -> Storage:
    return Bucket(url) if url else Folder(instance_dir / "files")


def incoming() -> Path:
    """The folder of uploads under way, on the disk of the folder storage."""
    path = config.current().instance_dir.resolve() / "files" / INCOMING
    with _available():
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    return path


def remove_incoming(until: datetime) -> None:
    """Remove uploads that ended before a moment, as their processes were killed."""
    for path in incoming().iterdir():
        with suppress(FileNotFoundError):
            if _modified_at(path) < until:
                path.unlink()


def key_of(account_id: str, file_id: str) -> str:
    """The key of a file."""
    return f"{account_id}/{file_id}"


def thumbnails_of(account_id: str, file_id: str) -> str:
    """The beginning of the keys of a file's thumbnails."""
    return f"{account_id}/{THUMBNAILS}/{file_id}/"


def owner_of(key: str) -> tuple[str, str] | None:
    """The account and the file that a key is of; None for one that is of no file."""
    match key.split("/"):
        case [account_id, file_id] | [account_id, "thumbnails", file_id, _]:
            return account_id, file_id
    return None


def put_stream(key: str, source: IO[bytes]) -> None:
    """Store what a file-like object reads."""
    with tempfile.NamedTemporaryFile(dir=incoming(), delete=False) as file:
        shutil.copyfileobj(source, file)
    current().put(key, Path(file.name), {})


def free_bytes() -> int | None:
    """The bytes that uploads under way may still take; None if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(incoming()).free
    return None
