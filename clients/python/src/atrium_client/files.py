"""What the files of both clients share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

Source = str | Path | bytes | BinaryIO
Progress = Callable[[int, int | None], None]
"""Called with the bytes so far, and of the whole file if that is known."""


class FileInfo(TypedDict):
    """An uploaded file; its id goes into a record."""

    id: str
    name: str
    size: int
    mime_type: str
    sha256: str


@dataclass(frozen=True)
class Link:
    """An address that needs no credential."""

    url: str
    expires_at: str


def id_of(file: str | Mapping[str, Any]) -> str:
    """Return the id of a file, or of a record's value."""
    return file if isinstance(file, str) else str(file["id"])


@contextmanager
def opened(source: Source) -> Iterator[tuple[str, BinaryIO]]:
    """Open what is to be uploaded; returns its name and its bytes."""
    if isinstance(source, bytes):
        yield "file", BytesIO(source)
    elif isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            yield Path(source).name, file
    else:
        yield Path(str(getattr(source, "name", "file"))).name, source


class Reader:
    """A file that reports what has been read from it."""

    def __init__(self, file: BinaryIO, progress: Progress | None) -> None:
        self._file = file
        self._progress = progress
        self._read = 0
        self.is_repeatable = file.seekable()
        self._size = self._measure() if self.is_repeatable else None

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        chunk = self._file.read(size)
        self._read += len(chunk)
        if self._progress and chunk:
            self._progress(self._read, self._size)
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, as at the begin of each attempt."""
        position = self._file.seek(offset, whence)
        self._read = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def _measure(self) -> int:
        size = self._file.seek(0, 2)
        self._file.seek(0)
        return size


@contextmanager
def written(target: Path) -> Iterator[BinaryIO]:
    """Write a file beside the target, which it replaces only when it is complete."""
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
