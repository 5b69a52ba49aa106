"""Exports of the audit log: serialized as a stream, and read back for verification."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import orjson

from app.audit.chain import digest
from app.audit.entries import Entry
from app.web.csv_files import SPREADSHEET, Cells

NAMES = (
    *("account_id", "id", "operation", "table_name", "record_id", "column_name", "old_value"),
    *("new_value", "user_id", "actor_kind", "actor_id", "actor_name", "user_email", "user_name"),
    *("es_username", "es_reason"),
    *("es_timestamp", "ip_address", "user_agent", "request_id", "occurred_at", "extra_metadata"),
    "digest_version",
    *("salt", "values_digest", "actor_salt", "actor_digest", "entry_digest", "previous_hash"),
    *("checksum", "masked"),
)
FORMATS = {"csv": "text/csv", "json": "application/json", "jsonl": "application/x-ndjson"}
# Unlike in files of records, every leading apostrophe gets another one.
CELLS = Cells(digest.canonical, re.compile(f"{SPREADSHEET}|'"), re.compile("'"))
LINES = 500


def headers(format: str, counts: Mapping[str, int]) -> dict[str, str]:
    """Response headers of an export: file name and numbers of masked and erased values."""
    totals = {f"X-Service-{name.replace('_', '-').title()}": str(n) for name, n in counts.items()}
    return {"Content-Disposition": f"attachment; filename=audit-log.{format}", **totals}


def serialize(
    format: str,
    entries: Iterable[Entry],
    checkpoints: Iterable[object],
    starts: Iterable[object] = (),
) -> Iterator[bytes]:
    """The export in this format, in chunks."""
    if format == "csv":
        return CELLS.write(NAMES, entries, LINES)
    if format == "jsonl":
        return _chunks(orjson.dumps(entry) + b"\n" for entry in entries)
    return _chunks(_json(entries, checkpoints, starts))


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    chunk: list[bytes] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == LINES:
            yield b"".join(chunk)
            chunk.clear()
    yield b"".join(chunk)


def _json(
    entries: Iterable[Entry], checkpoints: Iterable[object], starts: Iterable[object]
) -> Iterator[bytes]:
    exported = masked = erased = 0
    yield b'{"items":[\n'
    for exported, entry in enumerate(entries, 1):
        masked += entry["masked"]
        erased += entry["salt"] is None and not entry["masked"]
        yield (b",\n" if exported > 1 else b"") + orjson.dumps(entry)
    totals = {"exported": exported, "values_masked": masked, "values_erased": erased}
    yield b'\n],"checkpoints":' + orjson.dumps(list(checkpoints))
    if found := list(starts):
        yield b',"starts":' + orjson.dumps(found)
    yield b"," + orjson.dumps(totals)[1:] + b"\n"


def read(path: Path) -> Iterator[Entry]:
    """The starts and entries of an exported file of this suffix. Raises ValueError."""
    if path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)
        with path.open(newline="", encoding="utf-8") as file:
            yield from map(_parse_row, csv.DictReader(file))
    elif path.suffix == ".json":
        export = orjson.loads(path.read_bytes())
        yield from (*export.get("starts", ()), *export["items"])
    else:
        with path.open("rb") as file:
            yield from (orjson.loads(line) for line in file if line.strip())


def _parse_row(row: Mapping[str, str]) -> Entry:
    entry: Entry = {name: CELLS.unescape(cell) for name, cell in row.items()}
    entry["id"], entry["masked"] = int(entry["id"]), entry["masked"] == "true"
    entry["digest_version"] = int(entry.get("digest_version") or 1)  # older exports have none
    if entry["extra_metadata"] is not None:
        entry["extra_metadata"] = orjson.loads(entry["extra_metadata"])
    return entry
