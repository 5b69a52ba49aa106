"""The way of a created record stays short: modules of `app`, and changes between them."""

from __future__ import annotations

import re
import subprocess
import sys

# As reached.
MODULES, CHANGES = 42, 144


def test_created_record_takes_a_short_way() -> None:
    # In a process of its own: what other tests leave behind would lengthen the way.
    command = [sys.executable, "-m", "bench.trace", "sqlite"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = re.match(r"(\d+) modules, (\d+) changes of module", printed)
    assert figures is not None, printed
    modules, changes = map(int, figures.groups())
    assert modules <= MODULES, printed
    assert changes <= CHANGES, printed
