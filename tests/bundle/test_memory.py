"""A bundle of any size takes the same memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from flask import Flask

from tests import builders
from tests.builders import Cast
from tests.bundle.accounts import export, import_


@pytest.mark.long
def test_bundle_export_and_import_have_bounded_memory(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    """A worker writes the bundles that admins order: they must not use up its memory."""
    builders.make_collection(cast.root)
    for number in range(40):
        builders.make_record(cast.alice, title=f"{number:03}" + "x" * 990_000)
    tracemalloc.start()
    file = export(app, tmp_path)
    exported = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    result = import_(app, file, "--as", "root@system.example", "--slug", "copy")
    imported = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.exit_code == 0, result.output
    assert max(exported, imported) < 36 * 2**20, (exported, imported)
