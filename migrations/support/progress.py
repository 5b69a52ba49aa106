"""Progress of a long conversion, on stderr: a counter on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown(label: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of the block; yields the function to call with what is done so far."""
    is_terminal, line, printed = sys.stderr.isatty(), "", ""
    printed_at = float("-inf")

    def show(done: int) -> None:
        nonlocal line, printed, printed_at
        line = f"{label}: {done:,}"
        if is_terminal:
            sys.stderr.write(f"\r{line}")
            sys.stderr.flush()
        elif time.monotonic() >= printed_at + SECONDS_BETWEEN_LINES:
            printed, printed_at = line, time.monotonic()
            sys.stderr.write(f"{line}\n")

    try:
        yield show
    finally:
        if line and is_terminal:
            sys.stderr.write("\n")
        elif line != printed:
            sys.stderr.write(f"{line}\n")
