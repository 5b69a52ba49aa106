"""The tokens of a session, and where they are stored."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

EXPIRY_MARGIN_SECONDS = 10


@dataclass(frozen=True)
class Tokens:
    """The tokens of a session; the refresh token works once."""

    access_token: str
    refresh_token: str
    expires_at: float
    """When the access token expires, in seconds since 1970."""

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> Self:
        """Return the tokens that a sign-in or refresh answers."""
        expires_at = time.time() + answer["expires_in"]
        return cls(answer["access_token"], answer["refresh_token"], expires_at)

    @property
    def is_expired(self) -> bool:
        """Whether the access token has expired, or is about to."""
        return time.time() > self.expires_at - EXPIRY_MARGIN_SECONDS


class TokenStorage(Protocol):
    """Where a client stores the tokens of its session."""

    def load(self) -> Tokens | None:
        """Return the stored tokens."""

    def save(self, tokens: Tokens | None) -> None:
        """Store tokens, or remove them."""


class MemoryStorage:
    """Tokens that end with the process."""

    _tokens: Tokens | None = None

    def load(self) -> Tokens | None:
        """Return the stored tokens."""
        return self._tokens

    def save(self, tokens: Tokens | None) -> None:
        """Store tokens, or remove them."""
        self._tokens = tokens


class FileStorage:
    """Tokens in a file that only its owner can read, for one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def load(self) -> Tokens | None:
        """Return the stored tokens."""
        try:
            return Tokens(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None

    def save(self, tokens: Tokens | None) -> None:
        """Store tokens, or remove them."""
        if tokens is None:
            return self._path.unlink(missing_ok=True)
        written = self._path.with_name(f"{self._path.name}.new")
        written.unlink(missing_ok=True)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(tokens), file)
        written.replace(self._path)  # a crash leaves the old tokens or the new ones
        return None
