"""What an import reads: a text here, an archive in `archive_imports.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from app import config
from app.collections.cells import typed_value
from app.collections.definitions import Definition
from app.errors import PayloadTooLarge
from app.records.transfer import formats


class Source(Protocol):
    """The records of an import. Close it afterwards, whatever became of them."""

    def lines(self, definition: Definition) -> Sequence[formats.Line]:
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

    def lines(self, definition: Definition) -> Sequence[formats.Line]:
        """The records. Raises Malformed, PayloadTooLarge."""
        return read_lines(self.format, self.raw, definition)

    def close(self) -> None:
        """Nothing is left over."""


def read_lines(format: str, raw: bytes, definition: Definition) -> list[formats.Line]:
    """The records of a text with their lines. Raises Malformed, PayloadTooLarge."""
    max_rows = config.current().import_max_rows
    lines = list(islice(formats.read(format, raw), max_rows + 1))
    if len(lines) > max_rows:
        raise PayloadTooLarge(f"An import has at most {max_rows:,} records. Split the file.")
    return list(map(partial(_typed, definition), lines)) if format == "csv" else lines


def _typed(definition: Definition, line: formats.Line) -> formats.Line:
    number, cells = line
    if not isinstance(cells, dict):
        return line
    fields = definition.fields
    return number, {name: typed_value(fields.get(name), cell) for name, cell in cells.items()}
