"""Finds the kind of a ZIP archive: an office document, a book, a Java archive, or just that.

Only the directory and one small entry are read, within bounds: what an archive unpacks to, and how
many entries it claims, cost nothing.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

ARCHIVE, JAR = "application/zip", "application/java-archive"
ANDROID = "application/vnd.android.package-archive"
END_BYTES = 22 + 65_535  # of the directory's end, with the longest comment
MOST_DIRECTORY, MOST_CONTENT_TYPES, LONGEST_TYPE = 2**20, 2**20, 256
END, ENTRY, LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
CONTENT_TYPES, MIMETYPE = b"[Content_Types].xml", b"mimetype"
STORED, DEFLATED = 0, 8
# The content of the first entry in OpenDocument (part 2, 3.3) and EPUB (OCF 3.3, 4.3.3).
OF_MIMETYPE = re.compile(rb"application/(epub\+zip|vnd\.(oasis\.opendocument|sun\.xml)\.[a-z.-]+)")
# The type of a package's main part (ECMA-376 part 2, 10.1.2), and that of the file.
MAIN_PART = re.compile(
    rb"""ContentType\s*=\s*["']application/(vnd\.(?:openxmlformats-officedocument"""
    rb"""\.(?:wordprocessingml|spreadsheetml|presentationml)\.[a-z]+"""
    rb"""|ms-(?:word|excel|powerpoint)\.[a-z.]+?macroEnabled"""
    rb"""|ms-visio\.[a-z.]+?))(?:\.12)?\.main(?:\+xml)?["']""",
    re.IGNORECASE,
)


class _Entry(NamedTuple):
    name: bytes
    method: int
    packed: int
    offset: int


def type_of(path: Path) -> str:
    """The type of a ZIP archive."""
    with path.open("rb") as file:
        try:
            return _found(file) or ARCHIVE
        except (struct.error, zlib.error, OSError, ValueError):  # damaged
            return ARCHIVE


def _found(file: BinaryIO) -> str | None:
    entries = {entry.name: entry for entry in reversed(list(_entries(file)))}
    first = entries.get(MIMETYPE)
    if first and first.offset == 0:
        kind = _content(file, first, LONGEST_TYPE).strip()
        if OF_MIMETYPE.fullmatch(kind):
            return kind.decode()
    if CONTENT_TYPES in entries:
        main = MAIN_PART.search(_content(file, entries[CONTENT_TYPES], MOST_CONTENT_TYPES))
        if main:
            office = f"application/{main[1].decode()}"
            return f"{office}.12" if office.endswith("macroEnabled") else office
    if b"AndroidManifest.xml" in entries:
        return ANDROID
    return JAR if b"META-INF/MANIFEST.MF" in entries else None


def _entries(file: BinaryIO) -> Iterator[_Entry]:
    size = file.seek(0, 2)
    file.seek(max(0, size - END_BYTES))
    end = file.read()
    at = end.rfind(END)
    if at < 0:
        return
    length, start = struct.unpack_from("<II", end, at + 12)
    if start >= size:  # ZIP64, for archives over 4 GiB: no kind of document
        return
    file.seek(start)
    directory, at = file.read(min(length, MOST_DIRECTORY)), 0
    while directory[at : at + 4] == ENTRY and at + 46 <= len(directory):
        method, packed = struct.unpack_from("<H8xI", directory, at + 10)
        names, extras, comments = struct.unpack_from("<HHH", directory, at + 28)
        (offset,) = struct.unpack_from("<I", directory, at + 42)
        yield _Entry(directory[at + 46 : at + 46 + names], method, packed, offset)
        at += 46 + names + extras + comments


def _content(file: BinaryIO, entry: _Entry, most: int) -> bytes:
    """The beginning of what an entry unpacks to."""
    file.seek(entry.offset)
    head = file.read(30)
    if not head.startswith(LOCAL):
        return b""
    file.seek(sum(struct.unpack_from("<HH", head, 26)), 1)
    packed = file.read(min(entry.packed, most))
    if entry.method == STORED:
        return packed
    return zlib.decompressobj(-15).decompress(packed, most) if entry.method == DEFLATED else b""
