"""Fixtures of tests that start instances as extensions' own tests do."""

from __future__ import annotations

import pytest

from app.extend.testing import Instance


@pytest.fixture(scope="session")
def first_instance() -> None:
    """The first instance of a process, which imports and migrates what later ones find."""
    with Instance() as instance:
        instance.superadmin.get("accounts")
