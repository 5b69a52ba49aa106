"""File formats of records: CSV, JSON and JSON lines, written in chunks and read by line.

What an import reads is a `Source`: a text here, an archive in `archive_imports`.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import orjson

from app import config
from app.collections.definitions import Definition
from app.collections.fields import typed_value
from app.errors import Malformed, PayloadTooLarge, UnsupportedMediaType
from app.types import JSONMapping
from app.web import serialization
from app.web.csv_files import SPREADSHEET, Cells

ARCHIVE = "zip"  # app/records/transfer/archives.py
FORMATS = {
    "csv": "text/csv",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    ARCHIVE: "application/zip",
}
BATCH_SIZE = 200
CELLS = Cells(orjson.dumps, re.compile(f"'*(?:{SPREADSHEET})"), re.compile(f"'+(?:{SPREADSHEET})"))
MAX_COLUMNS = 1000
DELIMITERS = ",;\t"  # spreadsheets of many countries write semicolons
SEPARATOR = re.compile(r'"?sep=([,;\t|])"?[,;\t|]*(?:\r\n|\r|\n)', re.IGNORECASE)
CHARSETS = re.compile("utf-?8|utf-?16(?:[lb]e)?|us-ascii|iso-8859-[0-9]+|latin-?1|windows-125[0-8]")
QUOTED = re.compile('"[^"]*"')

View = JSONMapping
Line = tuple[int, Any]
"""Line number and record, or a Malformed error in its place."""

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # bodies are limited elsewhere


def write(
    format: str, names: Sequence[str], records: Iterable[View], *, bom: bool = False
) -> Iterator[bytes]:
    """Serialize records in chunks; `bom` puts a byte order mark before CSV, for Excel."""
    writers = {"csv": _csv, "json": _json, "jsonl": _jsonl}
    text = writers[format](names, records)
    return chain([codecs.BOM_UTF8], text) if bom and format == "csv" else text


def read(format: str, raw: bytes) -> Iterator[Line]:
    """Read the records of a file with their line numbers. Raises Malformed (422)."""
    readers = {"csv": _rows, "json": serialization.iter_records, "jsonl": _lines}
    return readers[format](raw)


def _json(names: Sequence[str], records: Iterable[View]) -> Iterator[bytes]:
    start = b"["
    for batch in _batches(records):
        yield start + b"\n" + b",\n".join(map(orjson.dumps, batch))
        start = b","
    yield b"[]\n" if start == b"[" else b"\n]\n"


def _jsonl(names: Sequence[str], records: Iterable[View]) -> Iterator[bytes]:
    for batch in _batches(records):
        yield b"".join(orjson.dumps(record) + b"\n" for record in batch)


def _csv(names: Sequence[str], records: Iterable[View]) -> Iterator[bytes]:
    return CELLS.write(names, records, BATCH_SIZE)


def _batches(records: Iterable[View]) -> Iterator[list[View]]:
    batch: list[View] = []
    for record in records:
        batch.append(record)
        if len(batch) == BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


def _lines(raw: bytes) -> Iterator[Line]:
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                yield number, serialization.parse(line, infinite=True)
            except Malformed as error:
                yield number, error


def _rows(raw: bytes) -> Iterator[Line]:
    text = _text(raw)
    # Excel's own way to say which delimiter follows.
    named = SEPARATOR.match(text)
    text = text[named.end() :] if named else text
    delimiter = named[1] if named else _delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + (2 if named else 1)
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise _invalid_csv(line, f"This is not CSV: {error}.") from None
        if header is None:
            header = _header(row)
        elif len(row) != 1 and not any(row):  # an empty line, or cells that a spreadsheet cleared
            continue
        elif len(row) == len(header):
            yield line, dict(zip(header, map(CELLS.unescape, row), strict=True))
        else:
            yield (
                line,
                _invalid_csv(line, f"Has {len(row)} cells; the first line names {len(header)}."),
            )
    if header is None:
        raise Malformed.at("body", msg="The first line must name the fields.", type="missing")


def _delimiter(text: str) -> str:
    """The delimiter of the names in the first line; a comma if there is none."""
    head = QUOTED.sub("", re.split("[\r\n]", text, maxsplit=1)[0])
    return max(DELIMITERS, key=head.count)


def _header(row: Sequence[str]) -> list[str]:
    names = [name.strip() for name in row]
    if not names or len(names) > MAX_COLUMNS or max(Counter(names).values()) > 1:
        msg = f"The first line must name each field once, at most {MAX_COLUMNS:,}."
        raise _invalid_csv(1, msg)
    return names


def utf8(raw: bytes, charset: str) -> bytes:
    """A text in another encoding as UTF-8. Raises Malformed, UnsupportedMediaType."""
    if not CHARSETS.fullmatch(charset.lower()):
        message = f"The charset {charset[:40]} is not supported. Send UTF-8."
        raise UnsupportedMediaType(message)
    try:
        return raw.decode(charset).encode()
    except (UnicodeError, LookupError):
        raise Malformed.at("body", msg=f"The body is not valid {charset}.", type="csv") from None


def _text(raw: bytes) -> str:
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # as spreadsheets save Unicode text
        raw = utf8(raw, "utf-16")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        msg = "The body is not valid UTF-8. Name another encoding, such as charset=windows-1252."
        raise Malformed.at("body", msg=msg, type="csv") from None
    if "\0" in text:
        raise Malformed.at("body", msg="The body contains the NUL character.", type="csv")
    return text


def _invalid_csv(line: int, msg: str) -> Malformed:
    return Malformed.at("body", line, msg=msg, type="csv")


class Source(Protocol):
    """The records of an import. Close it afterwards, whatever became of them."""

    def lines(self, definition: Definition) -> Sequence[Line]:
        """The records with their line numbers. Raises Malformed, PayloadTooLarge, InvalidValues."""
        ...

    def close(self) -> None:
        """Remove what no record has taken."""
        ...


@dataclass(frozen=True)
class TextSource:
    """A text in CSV, JSON or JSON lines."""

    format: str
    raw: bytes

    def lines(self, definition: Definition) -> Sequence[Line]:
        """The records. Raises Malformed, PayloadTooLarge."""
        return read_lines(self.format, self.raw, definition)

    def close(self) -> None:
        """Nothing is left over."""


def read_lines(format: str, raw: bytes, definition: Definition) -> list[Line]:
    """The records of a text with their lines. Raises Malformed, PayloadTooLarge."""
    max_rows = config.current().import_max_rows
    lines = list(islice(read(format, raw), max_rows + 1))
    if len(lines) > max_rows:
        raise PayloadTooLarge(f"An import has at most {max_rows:,} records. Split the file.")
    if format != "csv":
        return lines
    fields = definition.fields
    return [
        (number, {name: typed_value(fields.get(name), cell) for name, cell in record.items()})
        if isinstance(record, dict)
        else (number, record)
        for number, record in lines
    ]
