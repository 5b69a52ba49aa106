"""A database of its own for the tests of the language, with nothing of the application's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rules import backends


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> Iterator[backends.Backend]:
    started = backends.start(request.param)
    yield started
    started.close()
