"""Keys for development, generated once in the instance folder."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def random_secret() -> str:
    """Generate a key that signs tokens."""
    return secrets.token_urlsafe(48)


def fernet_key() -> str:
    """Generate a key that encrypts stored secrets: 32 bytes in base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


class InvalidKeyFile(Exception):
    """Raised if a key file holds no key."""


def load_or_create(path: Path, make: Callable[[], str], is_key: Callable[[str], bool]) -> str:
    """Return the key in a file, generated if missing. Raises OSError or InvalidKeyFile."""
    # Linking a finished file is atomic: two processes that start at once read the same key.
    if not path.exists():
        # The folder also holds mails with sign-in links.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        with draft.open("w") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())  # else a power failure might leave an empty file
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = path.read_text("utf-8", "replace").strip()
    if "\N{REPLACEMENT CHARACTER}" in key or not is_key(key):
        raise InvalidKeyFile(f"{path} holds no valid key. Restore it, or delete it for a new one")
    return key
