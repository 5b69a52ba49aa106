"""Keys that development makes for itself, and keeps in the instance folder."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.fernet import Fernet


def random_secret() -> str:
    """What signs tokens."""
    return secrets.token_urlsafe(48)


def fernet() -> str:
    """What encrypts stored secrets: 32 bytes in base64."""
    return Fernet.generate_key().decode()


def kept(path: Path, make: Callable[[], str]) -> str:
    """The key in a file, made where there is none. Raises OSError."""
    # Linking a finished file is atomic: of two processes that start at once both read one key.
    if not path.exists():
        # The mails in it carry links that sign people in.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(make())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()
