"""Exports as ZIP archives: the records as JSON lines, then the bytes of their files.

A record's file is `files/<id>/<name>`. There are only those that the caller may download: of
fields that it may view, unmasked, and of records that meet the view rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from tempfile import SpooledTemporaryFile
from typing import IO, Any

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
from app.records.transfer import formats, zip_writer
from app.records.transfer.zip_writer import Entry
from app.types import JSONObject

RECORDS, FILES = "records.jsonl", "files"
IN_MEMORY = 2**20
MOST_FILES = 100_000  # whose directory takes 60 MB of memory
TOO_MANY = f"An archive has at most {MOST_FILES:,} files: filter the records."
ACCOUNT, VIEWABLE = "_account", "_viewable"
LONGEST_NAME = 200  # bytes; file systems take 255
UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
LOST = "The bytes of a file cannot be read. Try again in a moment."


@dataclass
class Archive:
    """An export of one statement's rows. Reads no settings, so that it may outlive the request."""

    access: Access
    names: Sequence[str]
    fields: Sequence[str]
    """The fields whose files the caller may download."""
    extra_columns: dict[str, sa.ColumnElement[Any]]
    """What the statement has to select besides the fields."""
    place: Storage

    @classmethod
    def of(cls, access: Access, names: Sequence[str]) -> Archive:
        """The archive of what a caller may list."""
        definition = access.definition
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
        pieces = self._pieces(rows, end_of_rows)
        return chain([next(pieces)], pieces)

    def _pieces(self, rows: Iterable[Row], end_of_rows: Callable[[], None]) -> Iterator[bytes]:
        with SpooledTemporaryFile(IN_MEMORY) as listed:
            yield from zip_writer.write(self._entries(rows, end_of_rows, listed))

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
            for file in self._files(row):
                key, size = storage.key_of(row[ACCOUNT], file["id"]), file["size"]
                if listed.tell() == 0:  # while the error can still be answered
                    list(self._read(key, min(size, 1)))
                count += 1
                if count > MOST_FILES:
                    raise BadRequest(TOO_MANY, error="limit_reached")
                listed.write(orjson.dumps([key, _entry_name(file), size]) + b"\n")
            yield views.render(row, self.names, self.access)

    def _files(self, row: Row) -> Iterator[JSONObject]:
        if self.fields and row[VIEWABLE]:
            yield from (file for name in self.fields for file in files_in(row[name]))

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


def _entry_name(file: JSONObject) -> str:
    name = UNSAFE.sub("_", file["name"])
    suffix = PurePosixPath(name).suffix[:20]
    stem = name.removesuffix(suffix).encode()[: LONGEST_NAME - len(suffix.encode())]
    return f"{FILES}/{file['id']}/{stem.decode(errors='ignore')}{suffix}"
