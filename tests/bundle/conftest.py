"""Keys of passphrases as operators have them."""

from __future__ import annotations

import pytest

from app.portability.bundle import frames
from tests.conftest import REAL_SCRYPT


@pytest.fixture
def real_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters with which a key costs what it costs whoever guesses a passphrase."""
    monkeypatch.setattr(frames, "SCRYPT", REAL_SCRYPT)
