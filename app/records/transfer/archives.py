"""Exports as ZIP archives: the records as JSON lines, then the bytes of their files.

A record's file is `files/<id>/<name>`. There are only those that the caller may download: of
fields that it may view, unmasked, and of records that meet the view rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from itertools import chain
from pathlib import PurePosixPath
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import orjson
import sqlalchemy as sa

from app.collections import access as accesses
from app.collections.access import Access
from app.collections.fields.file import files_in
from app.errors import BadRequest, Unavailable
from app.files import storage
from app.files.storage import Storage
from app.records.read import views
from app.records.store import Row
from app.records.transfer import formats
from app.types import JSONMapping, JSONObject

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RECORDS, FILES = "records.jsonl", "files"
IN_MEMORY = 2**20
MOST_FILES = 100_000  # whose directory takes 60 MB of memory
TOO_MANY = f"An archive has at most {MOST_FILES:,} files: filter the records."
ACCOUNT, VIEWABLE = "_account", "_viewable"
LONGEST_NAME = 200  # bytes; file systems take 255
# Separators, control characters, and marks that turn the direction of text.
UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]')
LOST = "The bytes of a file cannot be read. Try again in a moment."
REGULAR_FILE = 0o100644 << 16


@dataclass
class Archive:
    """An export of one statement's rows. Reads no settings, so that it may outlive the request."""

    access: Access
    names: Sequence[str]
    fields: Sequence[str]
    """The fields whose files the caller may download."""
    extra_columns: dict[str, sa.ColumnElement[Any]]
    """The columns that the statement selects besides the fields."""
    place: Storage

    @classmethod
    def of(cls, access: Access, names: Sequence[str]) -> Archive:
        """The archive of what a caller may list."""
        definition = access.definition
        if definition.files.keys() & set(names):  # 403 for a key, not a smaller archive
            accesses.check_scope(access.caller, definition, "view")
        view = accesses.if_open(access.caller, definition, "view")
        shown = access.comparable.keys() & view.comparable.keys() if view else frozenset()
        fields = [name for name in names if name in definition.files and name in shown]
        extra_columns = dict[str, sa.ColumnElement[Any]]()
        if fields and view:
            where = sa.true() if view.where is None else view.where
            is_viewable = sa.case((where, 1), else_=0)
            extra_columns = {ACCOUNT: definition.table.c.account_id, VIEWABLE: is_viewable}
        return cls(access, names, fields, extra_columns, storage.current())

    def write(self, rows: Iterable[Row], end_of_rows: Callable[[], None]) -> Iterator[bytes]:
        """The archive in pieces. Raises Unavailable, at once if the first files cannot be read."""

        def pieces() -> Iterator[bytes]:
            with SpooledTemporaryFile(IN_MEMORY) as listed:
                yield from write_zip(self._entries(rows, end_of_rows, listed))

        remaining = pieces()
        return chain([next(remaining)], remaining)

    def _entries(
        self, rows: Iterable[Row], end_of_rows: Callable[[], None], listed: IO[bytes]
    ) -> Iterator[Entry]:
        records = formats.write("jsonl", self.names, self._records(rows, listed))
        yield Entry(RECORDS, records, is_compressed=True)
        end_of_rows()  # nobody has to keep the snapshot while the files are sent
        listed.seek(0)
        for line in listed:
            key, name, size = orjson.loads(line)
            yield Entry(name, self._read(key, size))  # most kinds are compressed already

    def _records(self, rows: Iterable[Row], listed: IO[bytes]) -> Iterator[JSONObject]:
        count = 0
        for row in rows:
            fields = self.fields if self.fields and row[VIEWABLE] else ()
            for file in chain.from_iterable(files_in(row[name]) for name in fields):
                key, size = storage.key_of(row[ACCOUNT], file["id"]), file["size"]
                if listed.tell() == 0:  # while the error can still be answered
                    list(self._read(key, min(size, 1)))
                count += 1
                if count > MOST_FILES:
                    raise BadRequest(TOO_MANY, error="limit_reached")
                listed.write(orjson.dumps([key, entry_name(file), size]) + b"\n")
            yield views.render(row, self.names, self.access)

    def _read(self, key: str, size: int) -> Iterator[bytes]:
        left = size
        try:
            for chunk in self.place.read(key, 0, size):
                left -= len(chunk)
                yield chunk
        except storage.Missing:
            pass
        if left:
            raise Unavailable(LOST)


def entry_name(file: JSONMapping) -> str:
    """The name of a file in an archive: unique by its id, and safe on every system."""
    name = UNSAFE.sub("_", file["name"]).strip(" .") or "file"
    suffix = PurePosixPath(name).suffix[:20]
    stem = name.removesuffix(suffix).encode()[: LONGEST_NAME - len(suffix.encode())]
    return f"{FILES}/{file['id']}/{stem.decode(errors='ignore')}{suffix}"


class Entry(NamedTuple):
    """A file of an archive."""

    name: str
    contents: Iterable[bytes]
    is_compressed: bool = False


class _Sink(RawIOBase):
    """A buffer of the bytes that were written and not yet taken."""

    def __init__(self) -> None:
        self._pieces = list[bytes]()

    def write(self, data: ReadableBuffer, /) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken


def write_zip(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield a ZIP archive piece by piece. The same contents make the same archive at any time.

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
