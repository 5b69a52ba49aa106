"""Nothing is lost and nothing invented, whatever is killed, emptied, cut or restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.webhooks.faults import Service

LONG = 200


def survive(database: str, folder: Path, faults: int, seed: int) -> None:
    """Run a service through so many faults."""
    service = Service(database, folder, seed)
    try:
        broken = service.run(faults)
        assert broken.total() == faults
        assert service.check() > faults
    finally:
        service.close()


# Each kind of fault once: without servers there are fewer.
@pytest.mark.parametrize(("database", "faults"), [("sqlite", 4), ("postgresql", 8)])
def test_deliveries_survive_faults_without_loss_or_invention(
    database: str, faults: int, tmp_path: Path
) -> None:
    survive(database, tmp_path, faults=faults, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_deliveries_survive_long_row_of_faults(database: str, tmp_path: Path) -> None:
    survive(database, tmp_path, faults=LONG, seed=1)
