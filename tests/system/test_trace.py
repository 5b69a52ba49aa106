"""The ways of a created record and of a page stay short: modules of `app`, and changes of them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

# As reached.
CREATED, PAGE = (38, 133), (45, 291)


@pytest.mark.parametrize(
    ("options", "bounds"), [((), CREATED), (("--page",), PAGE)], ids=["created record", "page"]
)
def test_request_takes_a_short_way(options: tuple[str, ...], bounds: tuple[int, int]) -> None:
    # In a process of its own: what other tests leave behind would lengthen the way.
    command = [sys.executable, "-m", "bench.trace", "sqlite", *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = re.match(r"(\d+) modules, (\d+) changes of module", printed)
    assert figures is not None, printed
    modules, changes = map(int, figures.groups())
    assert modules <= bounds[0], printed
    assert changes <= bounds[1], printed
