"""Writes a ZIP archive piece by piece, to something that cannot be rewound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import RawIOBase
from typing import TYPE_CHECKING, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

REGULAR_FILE = 0o100644 << 16


class Entry(NamedTuple):
    """A file of an archive."""

    name: str
    contents: Iterable[bytes]
    is_compressed: bool = False


class _Sink(RawIOBase):
    """What was written and not yet taken."""

    def __init__(self) -> None:
        self._pieces = list[bytes]()

    def write(self, data: ReadableBuffer, /) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken


def write(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield an archive. The same contents make the same archive, whatever the time.

    Its directory, about 0.6 kB for an entry, is in memory until the end.
    """
    sink = _Sink()
    with ZipFile(sink, "w") as archive:
        for entry in entries:
            info = ZipInfo(entry.name)
            info.external_attr = REGULAR_FILE
            info.compress_type = ZIP_DEFLATED if entry.is_compressed else ZIP_STORED
            with archive.open(info, "w", force_zip64=True) as file:
                for chunk in entry.contents:
                    file.write(chunk)
                    yield sink.take()
    yield sink.take()
