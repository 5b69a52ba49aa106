"""Records as files: CSV, JSON and JSON lines, written in pieces and read line by line.

In CSV an empty cell is null. A cell that a spreadsheet would run, and an empty text, stand behind
an apostrophe, and so does whatever would read like one of these: every value comes back exactly.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from app.errors import Malformed
from app.rest import json_input
from app.types import JSONMapping

FORMATS = {"csv": "text/csv", "json": "application/json", "jsonl": "application/x-ndjson"}
PIECE = 200
ARMED = re.compile(r"'*([=+\-@\t\r\n]|\Z)")
DISARMED = re.compile(r"'+([=+\-@\t\r\n]|\Z)")
MOST_COLUMNS = 1000

Shown = JSONMapping
Line = tuple[int, Any]
"""Where a record starts, and the record; a Malformed in its place tells what is wrong with it."""

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # how long a body may be is bounded elsewhere


def write(format: str, names: Sequence[str], records: Iterable[Shown]) -> Iterator[bytes]:
    """The text of a file with these records, in pieces."""
    writers = {"csv": _csv, "json": _json, "jsonl": _jsonl}
    return writers[format](names, records)


def read(format: str, raw: bytes) -> Iterator[Line]:
    """The records of a file with the lines they start at. Raises Malformed (422)."""
    readers = {"csv": _rows, "json": json_input.iter_records, "jsonl": _lines}
    return readers[format](raw)


def escape_formula(text: str) -> str:
    """A text as it stands in a cell."""
    return f"'{text}" if ARMED.match(text) else text


def unescape_formula(cell: str) -> str | None:
    """The text that a cell stands for; None for an empty one."""
    if not cell:
        return None
    return cell[1:] if DISARMED.match(cell) else cell


def _json(names: Sequence[str], records: Iterable[Shown]) -> Iterator[bytes]:
    start = b"["
    for piece in _pieces(records):
        yield start + b"\n" + b",\n".join(map(orjson.dumps, piece))
        start = b","
    yield b"[]\n" if start == b"[" else b"\n]\n"


def _jsonl(names: Sequence[str], records: Iterable[Shown]) -> Iterator[bytes]:
    for piece in _pieces(records):
        yield b"".join(orjson.dumps(record) + b"\n" for record in piece)


def _csv(names: Sequence[str], records: Iterable[Shown]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(names)
    for piece in _pieces(records):
        writer.writerows([_cell(record[name]) for name in names] for record in piece)
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else orjson.dumps(value).decode()


def _pieces(records: Iterable[Shown]) -> Iterator[list[Shown]]:
    piece: list[Shown] = []
    for record in records:
        piece.append(record)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


def _lines(raw: bytes) -> Iterator[Line]:
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                yield number, json_input.loads(line, infinite=True)
            except Malformed as error:
                yield number, error


def _rows(raw: bytes) -> Iterator[Line]:
    reader = csv.reader(io.StringIO(_text(raw), newline=""), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise _misread(line, f"This is not CSV: {error}.") from None
        if header is None:
            header = _header(row)
        elif len(row) == len(header):
            yield line, dict(zip(header, map(unescape_formula, row), strict=True))
        elif row:  # an empty line is none
            yield line, _misread(line, f"Has {len(row)} cells; the first line names {len(header)}.")
    if header is None:
        raise Malformed.at("body", msg="The first line must name the fields.", type="missing")


def _header(row: Sequence[str]) -> list[str]:
    names = [name.strip() for name in row]
    if not names or len(names) > MOST_COLUMNS or max(Counter(names).values()) > 1:
        msg = f"The first line must name each field once, at most {MOST_COLUMNS:,}."
        raise _misread(1, msg)
    return names


def _text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed.at("body", msg="The body is not valid UTF-8.", type="csv") from None
    if "\0" in text:
        raise Malformed.at("body", msg="The body contains the NUL character.", type="csv")
    return text


def _misread(line: int, msg: str) -> Malformed:
    return Malformed.at("body", line, msg=msg, type="csv")
