"""Events survive whatever is killed: all that was committed, in order, doubles by their id."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.operator.faults import Service

KILLS, ACCOUNTS = 200, 1000


def survive(database: str, folder: Path, kills: int, accounts: int, seed: int) -> None:
    """Run a service whose accounts live and end through so many kills."""
    service = Service(database, folder, seed)
    try:
        broken = service.run(kills, accounts)
        assert broken.total() == kills
        assert service.written >= accounts
        assert service.check() > 3 * accounts
    finally:
        service.close()


@pytest.mark.parametrize(("database", "kills"), [("sqlite", 3), ("postgresql", 8)])
def test_events_survive_kills(database: str, kills: int, tmp_path: Path) -> None:
    survive(database, tmp_path, kills, 10, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_events_survive_long_row_of_kills(database: str, tmp_path: Path) -> None:
    survive(database, tmp_path, KILLS, ACCOUNTS, seed=2)
