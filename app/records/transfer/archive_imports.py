"""Imports of archives: records and the bytes of their files, as an export writes them.

`records.jsonl` (or `.json`, `.csv`) names files by the ids of their folders in `files/`. Each
becomes an upload of the caller, which the imported record takes.

An archive is as untrusted as any body. Nothing is written under its names, and unpacked it costs no
more than an upload of the same files: its directory, its entries, their sizes and their sum are
bounded before anything is read, and no entry yields more than the size that it states.
"""

from __future__ import annotations

import re
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, FileIO
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from app import config
from app.auth.principal import Principal
from app.collections.definitions import Definition
from app.errors import InvalidValues, problem
from app.files import service as files
from app.files import uploads
from app.files.storage import CHUNK
from app.files.uploads import Upload
from app.records.transfer import formats
from app.records.transfer.formats import Dialect, Line
from app.types import JSONObject

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

MOST_FILES = uploads.MAX_UNTAKEN
MOST_ENTRIES = 2 * MOST_FILES + 2  # with the folders
LARGEST_DIRECTORY = 2**20
ENCRYPTED = 0x1 | 0x40 | 0x2000
ENTRY = re.compile(
    r"records\.(?P<format>csv|json|jsonl)"
    r"|files/(?P<id>[A-Za-z0-9_-]{1,100})/(?!\.\.?\Z)[^/\\\x00-\x1f]{1,255}"
    r"|files/([A-Za-z0-9_-]{1,100}/)?"
)
# The exceptions of zipfile for damaged contents.
DAMAGE = (
    BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
    zlib.error,
)
INVALID = "archive_invalid"
NO_ARCHIVE = "This is no ZIP archive, or it is damaged."
DAMAGED = "This is damaged."
LAYOUT = "An archive has records.jsonl, .json or .csv, and files/<id>/<name>."


class ArchiveSource:
    def __init__(self, archive: Upload, by: Principal, dialect: Dialect) -> None:
        self._archive, self._by, self.dialect = archive, by, dialect
        self._lines: Sequence[Line] | None = None
        self._file_ids: Sequence[str] = ()

    def lines(self, definition: Definition) -> Sequence[Line]:
        """The records, with the ids of uploads; the files are unpacked once.

        Raises InvalidValues with the entries or lines, and what uploads and texts raise.
        """
        if self._lines is None:
            with _opened(self._archive) as archive, uploads.receiving() as begun:
                entries = _Entries.of(archive, self._archive.size, self._by)
                contents = BytesIO()
                _copy(archive, entries.records, contents)
                lines = formats.read_lines(
                    entries.format, contents.getvalue(), definition, self.dialect
                )
                wanted = _wanted(definition, lines, entries)
                for info, name in wanted.values():
                    begun.append(uploads.start(name))
                    _copy(archive, info, begun[-1])
                    begun[-1].seek(0)
                stored = uploads.store(begun, self._by, with_record=True) if begun else []
            self._file_ids = [file.id for file in stored]
            ids = dict(zip(wanted, self._file_ids, strict=True))
            self._lines = [(line, _with_ids(definition, item, ids)) for line, item in lines]
        return self._lines

    def close(self) -> None:
        """Remove the archive, and the files that no record has taken."""
        self._archive.close()
        if self._file_ids:
            files.forget(self._file_ids, self._by.require_account_id())


class _File(FileIO):
    """Limits single reads, as zipfile reads a whole directory at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        whole = size is None or not 0 <= size <= LARGEST_DIRECTORY
        found = super().read(LARGEST_DIRECTORY + 1 if whole else size)
        if found and len(found) > LARGEST_DIRECTORY:
            raise BadZipFile
        return found or b""


@contextmanager
def _opened(archive: Upload) -> Iterator[ZipFile]:
    with _File(archive.path) as file:
        with _undamaged(None):
            opened = ZipFile(file)
        with opened:
            yield opened


@contextmanager
def _undamaged(entry: str | None) -> Iterator[None]:
    try:
        yield
    except DAMAGE:
        raise InvalidValues([_fault(entry, NO_ARCHIVE if entry is None else DAMAGED)]) from None


def _fault(entry: str | None, message: str) -> JSONObject:
    return problem(entry and entry[:300], INVALID, message)


@dataclass(frozen=True)
class _Entries:
    format: str
    records: ZipInfo
    files: dict[str, ZipInfo]
    """The files by the ids that the records name."""

    @classmethod
    def of(cls, archive: ZipFile, size: int, by: Principal) -> _Entries:
        """The entries of an archive of this size. Raises InvalidValues."""
        infos = archive.infolist()
        if len(infos) > MOST_ENTRIES:
            raise InvalidValues([_fault(None, f"An archive has at most {MOST_FILES:,} files.")])
        repeated = [name for name, count in Counter(map(_key, infos)).items() if name and count > 1]
        faults = [_fault(one.filename, text) for one in infos if (text := _fault_of(one))]
        faults += (_fault(name, "This is in the archive more than once.") for name in repeated)
        if not faults:
            faults = [_fault(None, text) for text in _faults_of_all(infos, size, by)]
        if faults:
            raise InvalidValues(faults)
        matches = [(ENTRY.fullmatch(info.filename), info) for info in infos]
        records = [(match["format"], info) for match, info in matches if match and match["format"]]
        by_id = {match["id"]: info for match, info in matches if match and match["id"]}
        return cls(*records[0], by_id)


def _key(info: ZipInfo) -> str | None:
    match = ENTRY.fullmatch(info.filename)
    if match is None:
        return info.filename
    return "records" if match["format"] else match["id"] and f"files/{match['id']}"


def _fault_of(info: ZipInfo) -> str | None:
    match, settings = ENTRY.fullmatch(info.filename), config.current()
    if match is None or info.orig_filename != info.filename:
        return LAYOUT
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "This is a link or another special file."
    if info.flag_bits & ENCRYPTED:
        return "This is encrypted."
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "This is compressed by another method than deflate."
    largest = settings.max_body_bytes if match["format"] else settings.file_max_bytes
    return f"This has more than {largest:,} bytes." if info.file_size > largest else None


def _faults_of_all(infos: Sequence[ZipInfo], size: int, by: Principal) -> Iterator[str]:
    settings = config.current()
    largest = settings.file_max_bytes + settings.max_body_bytes
    largest = largest if by.signed_in else settings.max_anonymous_body_bytes
    if not any(_key(info) == "records" for info in infos):
        yield LAYOUT
    if sum(_key(info) is not None for info in infos) > MOST_FILES + 1:
        yield f"An archive has at most {MOST_FILES:,} files."
    if sum(info.file_size for info in infos) > largest:
        yield f"The files of an archive have at most {largest:,} bytes together."
    if sum(info.compress_size for info in infos) > size:
        yield "The files of the archive overlap."


def _wanted(
    definition: Definition, lines: Sequence[Line], entries: _Entries
) -> dict[str, tuple[ZipInfo, str]]:
    """The files that records name, by id, with their names. Raises InvalidValues."""
    wanted, faults = dict[str, tuple[ZipInfo, str]](), []
    for index, (line, record) in enumerate(lines):
        if not isinstance(record, dict):
            return {}  # the import refuses the file
        for name, field in definition.files.items():
            for item in _items(record.get(name)):
                id = _id_of(item)
                info = entries.files.get(id or "")
                place = {"index": index, "line": line}
                if id is None or info is None:
                    continue
                if id in wanted:
                    message = "Another record or field of this archive has this file."
                    faults.append(problem(name, "file_unknown", message, **place))
                elif info.file_size > field.largest:
                    message = f"Files have at most {field.largest:,} bytes here."
                    faults.append(problem(name, "file_too_large", message, **place))
                else:
                    name_ = item.get("name") if isinstance(item, dict) else None
                    wanted[id] = (info, name_ if isinstance(name_, str) else info.filename)
    if faults:
        raise InvalidValues(faults)
    return wanted


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _id_of(item: object) -> str | None:
    id = item.get("id") if isinstance(item, dict) else item
    return id if isinstance(id, str) else None


def _with_ids(definition: Definition, record: object, ids: Mapping[str, str]) -> object:
    if not isinstance(record, dict):
        return record
    changed = dict(record)
    for name in definition.files.keys() & record.keys():
        value = [ids.get(_id_of(item) or "", item) for item in _items(record[name])]
        changed[name] = value if isinstance(record[name], list) else value[0]
    return changed


def _copy(archive: ZipFile, info: ZipInfo, target: SupportsWrite[bytes]) -> None:
    left = info.file_size
    with _undamaged(info.filename), archive.open(info) as entry:
        while chunk := entry.read(CHUNK):  # never more at once: zipfile would inflate all of it
            left -= len(chunk)
            target.write(chunk)
        if left:
            raise BadZipFile
