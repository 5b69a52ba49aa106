"""Values of headers that are sent to others: encrypted in the database, `***` in answers.

They hold others' credentials. `***` in a request keeps the stored value.
"""

from __future__ import annotations

from typing import Any

from cryptography.fernet import InvalidToken

from app import crypto

MASK = "***"
ENCRYPTED = "encrypted"  # the one property of a stored value


def encrypt(text: str) -> dict[str, str]:
    """A value as it is stored."""
    return {ENCRYPTED: crypto.encrypt(text)}


def decrypt(stored: object) -> object:
    """A stored value in plain text, as former versions stored it. Raises InvalidToken."""
    return crypto.decrypt(stored[ENCRYPTED]) if isinstance(stored, dict) else stored


def decrypt_or(stored: object, default: object = None) -> Any:
    """A stored value in plain text; `default` where none of the configured keys reads it."""
    try:
        return decrypt(stored)
    except InvalidToken:
        return default


def reencrypt(stored: Any) -> object:
    """A value under the newest key: the same object if it was. Raises InvalidToken."""
    if not isinstance(stored, dict):
        return encrypt(stored)
    text = crypto.reencrypt(stored[ENCRYPTED])
    return stored if text is None else {ENCRYPTED: text}
