"""Exports of the audit log: written piece by piece, and read back for verifying."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from app.audit import digest
from app.audit.entries import Entry
from app.audit.models import AuditEntry

FORMATS = {"csv": "text/csv", "json": "application/json", "jsonl": "application/x-ndjson"}
NAMES = (*(column.name for column in AuditEntry.__table__.columns), "masked")
# A spreadsheet would run such a cell. The quote that disarms it is doubled where it is the
# cell's own, and stands alone for an empty text: so every cell can be read back exactly.
RISKY = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
LINES = 500


def headers(format: str, told: Mapping[str, int]) -> dict[str, str]:
    """What an export says of itself: its file name, and how many values are masked or erased."""
    counts = {f"X-Service-{name.replace('_', '-').title()}": str(n) for name, n in told.items()}
    return {"Content-Disposition": f"attachment; filename=audit-log.{format}", **counts}


def written(format: str, given: Iterable[Entry], checkpoints: Iterable[Any]) -> Iterator[bytes]:
    """The export's text, in pieces."""
    if format == "csv":
        return _csv(given)
    if format == "jsonl":
        return _pieces(orjson.dumps(entry) + b"\n" for entry in given)
    return _pieces(_json(given, checkpoints))


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece: list[bytes] = []
    for line in lines:
        piece.append(line)
        if len(piece) == LINES:
            yield b"".join(piece)
            piece.clear()
    yield b"".join(piece)


def _json(given: Iterable[Entry], checkpoints: Iterable[Any]) -> Iterator[bytes]:
    exported = masked = erased = 0
    yield b'{"items":[\n'
    for exported, entry in enumerate(given, 1):
        masked += entry["masked"]
        erased += entry["salt"] is None and not entry["masked"]
        yield (b",\n" if exported > 1 else b"") + orjson.dumps(entry)
    told = {"exported": exported, "values_masked": masked, "values_erased": erased}
    yield b'\n],"checkpoints":' + orjson.dumps(list(checkpoints))
    yield b"," + orjson.dumps(told)[1:] + b"\n"


def _csv(given: Iterable[Entry]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(NAMES)
    for count, entry in enumerate(given, 1):
        writer.writerow([_cell(entry[name]) for name in NAMES])
        if count % LINES == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else digest.canonical(value).decode()
    return f"'{text}" if not text or text.startswith(RISKY) else text


def read(path: Path) -> Iterator[Entry]:
    """The entries of an exported file, by its name's ending. Raises ValueError."""
    if path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)
        with path.open(newline="", encoding="utf-8") as file:
            yield from map(_entry_of, csv.DictReader(file))
    elif path.suffix == ".json":
        yield from orjson.loads(path.read_bytes())["items"]
    else:
        with path.open("rb") as file:
            yield from (orjson.loads(line) for line in file if line.strip())


def _entry_of(row: Mapping[str, str]) -> Entry:
    entry: Entry = {name: _value(cell) for name, cell in row.items()}
    entry["id"], entry["masked"] = int(entry["id"]), entry["masked"] == "true"
    if entry["extra_metadata"] is not None:
        entry["extra_metadata"] = orjson.loads(entry["extra_metadata"])
    return entry


def _value(cell: str) -> str | None:
    if not cell:
        return None
    return cell[1:] if cell.startswith("'") else cell
