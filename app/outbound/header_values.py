"""Values of outgoing headers: encrypted in the database, `***` in responses.

They hold credentials for other services. `***` in a request keeps the stored value.
"""

from __future__ import annotations

from typing import Any

from cryptography.fernet import InvalidToken

from app import crypto

MASK = "***"
ENCRYPTED = "encrypted"  # the one property of a stored value


def encrypt(text: str) -> dict[str, str]:
    """Encrypt a value for storage."""
    return {ENCRYPTED: crypto.encrypt(text)}


def decrypt(stored: object) -> object:
    """Decrypt a stored value; former versions stored plain text. Raises InvalidToken."""
    return crypto.decrypt(stored[ENCRYPTED]) if isinstance(stored, dict) else stored


def decrypt_or(stored: object, default: object = None) -> Any:
    """Decrypt a stored value; returns `default` if no configured key fits."""
    try:
        return decrypt(stored)
    except InvalidToken:
        return default


def reencrypt(stored: Any) -> object:
    """Re-encrypt a value with the newest key; returns the same object if it has that key.

    Raises InvalidToken.
    """
    if not isinstance(stored, dict):
        return encrypt(stored)
    text = crypto.reencrypt(stored[ENCRYPTED])
    return stored if text is None else {ENCRYPTED: text}
