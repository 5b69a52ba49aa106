"""The servers of tests that start processes."""

from __future__ import annotations

import pytest

from tests import conftest


def pytest_configure(config: pytest.Config) -> None:
    """Start them, whatever the database of the other tests is."""
    if not config.option.collectonly:
        conftest.start_servers()
