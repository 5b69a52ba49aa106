"""Every reader receives what was committed and is visible to it, in order, once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.system.realtime.proof import Scene


def prove(
    database: str, folder: Path, *, writers: int, changes: int, readers: int, cuts: int, faults: int
) -> None:
    """Write, cut and break; then compare what each reader has."""
    scene = Scene(database, folder, readers)
    try:
        scene.start(writers, changes)
        kinds = list(scene.faults().items())
        while scene.is_writing or scene.cuts < cuts:
            time.sleep(0.02 if scene.is_writing else 0.2)
            if scene.cuts < cuts:
                scene.cut()
            if scene.is_writing and faults and scene.chance.random() < 0.05:
                faults -= 1
                _, break_it = kinds[faults % len(kinds)]
                break_it()
        assert scene.check() >= changes
        assert scene.cuts >= cuts
    finally:
        scene.close()


@pytest.mark.parametrize(("database", "faults"), [("sqlite", 2), ("postgresql", 3)])
def test_stream_readers_get_every_change_once(database: str, faults: int, tmp_path: Path) -> None:
    prove(database, tmp_path, writers=3, changes=300, readers=8, cuts=10, faults=faults)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_stream_twenty_readers_get_ten_thousand_changes_once(database: str, tmp_path: Path) -> None:
    prove(database, tmp_path, writers=8, changes=10_000, readers=20, cuts=100, faults=9)
