"""CSV files, written in pieces. An empty cell is null.

A spreadsheet would execute cells that start with `=` and the like, so these and empty texts get a
leading apostrophe. So does whatever would read like one of these: every text comes back exactly.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.types import JSONMapping

SPREADSHEET = r"[=+\-@\t\r\n]|\Z"
"""The start of a text that needs an apostrophe."""


@dataclass(frozen=True)
class Cells:
    """Encodes values as cells, and decodes cells to texts."""

    encode: Callable[[object], bytes]
    """The text of values that are not texts."""
    armed: re.Pattern[str]
    """The start of a text that gets an apostrophe."""
    disarmed: re.Pattern[str]
    """The start of a cell that has got one."""

    def write(
        self, names: Sequence[str], rows: Iterable[JSONMapping], size: int
    ) -> Iterator[bytes]:
        """The text of a file, in pieces of so many rows."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\r\n")
        writer.writerow(names)
        for number, row in enumerate(rows, 1):
            writer.writerow([self.cell(row[name]) for name in names])
            if number % size == 0:
                yield buffer.getvalue().encode()
                buffer.seek(0)
                buffer.truncate()
        yield buffer.getvalue().encode()

    def cell(self, value: object) -> str:
        if value is None:
            return ""
        return self.escape(value) if isinstance(value, str) else self.encode(value).decode()

    def escape(self, text: str) -> str:
        return f"'{text}" if self.armed.match(text) else text

    def unescape(self, cell: str) -> str | None:
        """The text of a cell; None for an empty one."""
        if not cell:
            return None
        return cell[1:] if self.disarmed.match(cell) else cell
