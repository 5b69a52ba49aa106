"""The way of a created record stays short: modules of `app`, and changes between them."""

from __future__ import annotations

import pytest
from flask import Flask

from bench.trace import trace
from tests.builders import Cast

# As reached, and two more. The request log adds a little to what `python -m bench.trace` prints.
MODULES, CHANGES = 42, 150


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_created_record_takes_a_short_way(app: Flask, cast: Cast) -> None:
    traced = trace(app, cast)
    assert len(traced.modules) <= MODULES, sorted(traced.modules)
    assert traced.changes <= CHANGES, traced.calls
