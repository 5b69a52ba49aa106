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
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import orjson

from app import config
from app.collections.definitions import Definition
from app.collections.fields import typed_value
from app.errors import (
    InvalidValues,
    Malformed,
    PayloadTooLarge,
    UnsupportedMediaType,
    problem,
)
from app.types import JSONMapping, JSONObject
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
LINE_ENDS = re.compile("\r\n|\r|\n")
HEAD = 2000  # bytes
MULTIBYTE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
NOT_ASCII = re.compile(rb"[\x80-\xff]")
UNPRINTABLE = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")

View = JSONMapping
Line = tuple[int, Any]
"""Line number and record, or a Malformed error in its place."""


@dataclass
class Dialect:
    """The encoding of CSV, and what separates its cells: None unless named, until found."""

    encoding: str | None = None
    separator: str | None = None

    def found(self) -> JSONObject:
        """What is known, for an answer."""
        known = {"encoding": self.encoding, "separator": self.separator}
        return {name: text for name, text in known.items() if text is not None}


csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # bodies are limited elsewhere


def write(
    format: str, names: Sequence[str], records: Iterable[View], *, bom: bool = False
) -> Iterator[bytes]:
    """Serialize records in chunks; `bom` puts a byte order mark before CSV, for Excel."""
    writers = {"csv": _csv, "json": _json, "jsonl": _jsonl}
    text = writers[format](names, records)
    return chain([codecs.BOM_UTF8], text) if bom and format == "csv" else text


def read(format: str, raw: bytes, dialect: Dialect) -> Iterator[Line]:
    """Read the records of a file with their line numbers. Raises Malformed (422)."""
    if format == "csv":
        return _rows(raw, dialect)
    return serialization.iter_records(raw) if format == "json" else _lines(raw)


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


def _rows(raw: bytes, dialect: Dialect) -> Iterator[Line]:
    text = _text(raw, dialect)
    # Excel's own way to say which separator follows.
    named = SEPARATOR.match(text)
    text = text[named.end() :] if named else text
    if dialect.separator is None:
        dialect.separator = named[1] if named else _delimiter(text)
    source = io.StringIO(text, newline="")
    reader = csv.reader(source, delimiter=dialect.separator, strict=True)
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
            if any(row):
                header = _header(row, line)
        # An empty line, or cells that a spreadsheet cleared.
        elif (len(row) != 1 and not any(row)) or (len(row) == 1 < len(header) and _is_blank(row)):
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


def _is_blank(row: Sequence[str]) -> bool:
    return not row[0].strip()


def _delimiter(text: str) -> str:
    """The delimiter of the names in the first line; a comma if there is none."""
    head = QUOTED.sub("", re.split("[\r\n]", text.lstrip("\r\n"), maxsplit=1)[0])
    return max(DELIMITERS, key=head.count)


def _header(row: Sequence[str], line: int) -> list[str]:
    names = [name.strip() for name in row]
    if not names or len(names) > MAX_COLUMNS or max(Counter(names).values()) > 1:
        msg = f"The first line must name each field once, at most {MAX_COLUMNS:,}."
        raise _invalid_csv(line, msg)
    return names


def _text(raw: bytes, dialect: Dialect) -> str:
    """The text of a CSV file, in the encoding that is named, or found. Raises Malformed (422)."""
    is_found = dialect.encoding is None
    encoding = dialect.encoding = dialect.encoding or _encoding(raw)
    if not CHARSETS.fullmatch(encoding.lower()):
        raise UnsupportedMediaType(f"The charset {encoding[:40]} is not supported. Send UTF-8.")
    try:
        text = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        head = raw[: error.start].decode(encoding, "ignore")
        msg = f"This is not valid {encoding}."
        if is_found:
            msg = f"This is not valid {encoding}, as the file seems to be: name its encoding."
        raise _invalid_csv(len(LINE_ENDS.split(head)), msg) from None
    except (UnicodeError, LookupError):
        msg = f"The body is not valid {encoding}."
        raise Malformed.at("body", msg=msg, type="csv") from None
    if "\0" in text:
        raise Malformed.at("body", msg="The body contains the NUL character.", type="csv")
    return text


def _encoding(raw: bytes) -> str:
    """The encoding of a text that does not name it: UTF-8, UTF-16, or else windows-1252."""
    if raw.startswith(codecs.BOM_UTF16_LE):
        return "UTF-16LE"
    if raw.startswith(codecs.BOM_UTF16_BE):
        return "UTF-16BE"
    if b"\0" in raw[:HEAD]:  # names of fields are ASCII: each second byte is none
        for encoding in ("UTF-16LE", "UTF-16BE"):
            head = raw[:HEAD].decode(encoding, "ignore").split("\n", 1)[0]
            if head and head.isascii() and "\0" not in head:
                return encoding
    try:
        raw.decode()
    except UnicodeDecodeError:
        # A file in UTF-8 that is damaged has more of its sequences than of other bytes.
        others = MULTIBYTE.sub(b"", raw)
        damaged = len(NOT_ASCII.findall(others)) <= len(MULTIBYTE.findall(raw))
        return "UTF-8" if damaged or UNPRINTABLE.search(raw) else "windows-1252"
    return "UTF-8"


def _invalid_csv(line: int, msg: str) -> Malformed:
    return Malformed.at("body", line, msg=msg, type="csv")


class Source(Protocol):
    """The records of an import. Close it afterwards, whatever became of them."""

    dialect: Dialect

    def lines(self, definition: Definition) -> Sequence[Line]:
        """The records with their line numbers. Raises Malformed, PayloadTooLarge, InvalidValues."""
        ...

    def close(self) -> None:
        """Remove what no record has taken."""
        ...


@dataclass
class TextSource:
    """A text in CSV, JSON or JSON lines."""

    format: str
    raw: bytes
    dialect: Dialect = field(default_factory=Dialect)

    def lines(self, definition: Definition) -> Sequence[Line]:
        """The records. Raises Malformed, PayloadTooLarge."""
        return read_lines(self.format, self.raw, definition, self.dialect)

    def close(self) -> None:
        """Nothing is left over."""


def read_lines(format: str, raw: bytes, definition: Definition, dialect: Dialect) -> list[Line]:
    """The records of a text with their lines. Raises Malformed, PayloadTooLarge."""
    if format != "csv" and (given := dialect.found()):
        message = "Only CSV has this."
        raise InvalidValues([problem(name, "invalid_option", message) for name in given])
    max_rows = config.current().import_max_rows
    lines = list(islice(read(format, raw, dialect), max_rows + 1))
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
