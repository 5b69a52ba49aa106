"""Encryption and signing: the newest key writes, every configured key reads."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from itsdangerous import URLSafeSerializer

from app import config


def encrypt(text: str) -> str:
    """Encrypt a text for storage."""
    return _keys(config.current().encryption_key).encrypt(text.encode()).decode()


def decrypt(stored: str) -> str:
    """Decrypt a stored text. Raises InvalidToken if no key fits."""
    return _keys(config.current().encryption_key).decrypt(stored.encode()).decode()


def reencrypt(stored: str) -> str | None:
    """Encrypt a stored text with the newest key; None if it is already. Raises InvalidToken."""
    keys = config.current().encryption_key
    try:
        _keys(keys[:1]).decrypt(stored.encode())
    except InvalidToken:
        return _keys(keys).rotate(stored.encode()).decode()
    return None


@lru_cache
def _keys(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])


def sign(value: object, purpose: str) -> str:
    """Sign a JSON value for one purpose; returns a URL-safe text."""
    return _signer(purpose).dumps(value)


def unsign(text: str, purpose: str) -> Any:
    """Verify and parse a signed value, also with an older key. Raises BadSignature."""
    return _signer(purpose).loads(text)


def fingerprints(text: bytes, purpose: str) -> Iterator[str]:
    """Yield the HMAC of a text under each key, the newest first.

    For texts that may contain a password: a bare digest would confirm a guess.
    """
    settings = config.current()
    for key in (settings.secret_key, *settings.secret_key_previous):
        yield hmac.new(f"{purpose}:{key}".encode(), text, hashlib.sha256).hexdigest()


def _signer(purpose: str) -> URLSafeSerializer:
    settings = config.current()
    keys = [*reversed(settings.secret_key_previous), settings.secret_key]
    options = {"digest_method": hashlib.sha256}
    return URLSafeSerializer(keys, salt=purpose, serializer=_Json, signer_kwargs=options)


class _Json:
    """Compact JSON, as signed values stand in URLs."""

    @staticmethod
    def dumps(value: object) -> str:
        return orjson.dumps(value).decode()

    loads = staticmethod(orjson.loads)
