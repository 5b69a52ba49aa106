"""Stored secrets: encrypted with the newest key, read with any (contract section 12)."""

from __future__ import annotations

from functools import lru_cache

from cryptography.fernet import Fernet, MultiFernet

from app import config


def encrypt(text: str) -> str:
    """The encrypted form of a text, to be stored."""
    return _keys(config.current().encryption_key).encrypt(text.encode()).decode()


def decrypt(stored: str) -> str:
    """The text behind its stored form. Raises InvalidToken when no key fits."""
    return _keys(config.current().encryption_key).decrypt(stored.encode()).decode()


@lru_cache
def _keys(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])
