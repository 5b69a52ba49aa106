"""Keys that development makes for itself, and keeps in the instance folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.fernet import Fernet


def random_secret() -> str:
    """What signs tokens."""
    return secrets.token_urlsafe(48)


def fernet_key() -> str:
    """What encrypts stored secrets: 32 bytes in base64."""
    return Fernet.generate_key().decode()


class InvalidKeyFile(Exception):
    """Raised for a file of a key in which there is none."""


def load_or_create(path: Path, make: Callable[[], str], is_key: Callable[[str], bool]) -> str:
    """The key in a file, made where there is none. Raises OSError, and NoKey."""
    # Linking a finished file is atomic: of two processes that start at once both read one key.
    if not path.exists():
        # The mails in it carry links that sign people in.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        with draft.open("w") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())  # or a power failure might leave the name without the key
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    found = path.read_text("utf-8", "replace").strip()
    if "\N{REPLACEMENT CHARACTER}" in found or not is_key(found):  # left empty, say
        raise InvalidKeyFile(
            f"{path} holds no key: put back what it held, or remove it for a new one"
        )
    return found
