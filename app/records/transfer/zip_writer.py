"""Writes a ZIP archive piece by piece, to something that cannot be rewound.

`zipfile` keeps every entry in memory until the end (0.6 KB each); here they wait on the disk. All
entries are in the Zip64 format, as their sizes are known only afterwards. Nothing depends on the
time, so the same contents make the same archive.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import IO

VERSION, DEFLATED = 45, 8
FLAGS = 0x0808  # sizes follow the contents, names are UTF-8
DATE = 0x21  # 1 January 1980
REGULAR_FILE = 0o100644 << 16
SEE_EXTRA = 0xFFFFFFFF
PIECE = 2**20

LOCAL = Struct("<4s5H3L2H")
LOCAL_EXTRA = Struct("<2H2Q")
DESCRIPTOR = Struct("<4sL2Q")
CENTRAL = Struct("<4s6H3L5H2L")
CENTRAL_EXTRA = Struct("<2H3Q")
END_64 = Struct("<4sQ2H2L4Q")
LOCATOR = Struct("<4sLQL")
END = Struct("<4s4H2LH")


class ZipWriter:
    """An archive: its entries, one after the other, and then `end`."""

    def __init__(self, directory: IO[bytes]) -> None:
        """Keep the directory in an empty file."""
        self._directory, self._count, self._offset = directory, 0, 0

    def entry(self, name: str, contents: Iterable[bytes], level: int) -> Iterator[bytes]:
        """Yield an entry; a level of 0 stores it as it is."""
        start, encoded = self._offset, name.encode()
        crc = size = packed = 0
        compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        extra = LOCAL_EXTRA.pack(1, LOCAL_EXTRA.size - 4, 0, 0)
        numbers = (VERSION, FLAGS, DEFLATED, 0, DATE, 0, SEE_EXTRA, SEE_EXTRA)
        head = LOCAL.pack(b"PK\3\4", *numbers, len(encoded), len(extra)) + encoded + extra
        for chunk in contents:
            crc, size, data = zlib.crc32(chunk, crc), size + len(chunk), compressor.compress(chunk)
            packed += len(data)
            yield self._counted(head + data)
            head = b""
        data = compressor.flush()
        packed += len(data)
        yield self._counted(head + data + DESCRIPTOR.pack(b"PK\7\x08", crc, packed, size))
        extra = CENTRAL_EXTRA.pack(1, CENTRAL_EXTRA.size - 4, size, packed, start)
        lengths = (SEE_EXTRA, SEE_EXTRA, len(encoded), len(extra), 0, 0, 0)
        fixed = CENTRAL.pack(
            b"PK\1\2", VERSION, *numbers[:5], crc, *lengths, REGULAR_FILE, SEE_EXTRA
        )
        self._directory.write(fixed + encoded + extra)
        self._count += 1

    def end(self) -> Iterator[bytes]:
        """Yield the directory."""
        start, size = self._offset, self._directory.tell()
        self._directory.seek(0)
        while chunk := self._directory.read(PIECE):
            yield self._counted(chunk)
        counts = (self._count, self._count, size, start)
        end_64 = END_64.pack(b"PK\6\6", END_64.size - 12, VERSION, VERSION, 0, 0, *counts)
        locator = LOCATOR.pack(b"PK\6\7", 0, self._offset, 1)
        yield end_64 + locator + END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, SEE_EXTRA, SEE_EXTRA, 0)

    def _counted(self, data: bytes) -> bytes:
        self._offset += len(data)
        return data
