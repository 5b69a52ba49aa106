"""What is encrypted or signed with the newest key, and read with any (contract section 12)."""

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
    """The encrypted form of a text, to be stored."""
    return _keys(config.current().encryption_key).encrypt(text.encode()).decode()


def decrypt(stored: str) -> str:
    """The text behind its stored form. Raises InvalidToken when no key fits."""
    return _keys(config.current().encryption_key).decrypt(stored.encode()).decode()


def reencrypt(stored: str) -> str | None:
    """The form under the newest key; None where that made it already. Raises InvalidToken."""
    keys = config.current().encryption_key
    try:
        _keys(keys[:1]).decrypt(stored.encode())
    except InvalidToken:
        return _keys(keys).rotate(stored.encode()).decode()
    return None


@lru_cache
def _keys(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])


def sign(value: Any, purpose: str) -> str:
    """A value of JSON as a text for an URL that only we can have written, for that purpose."""
    return _signer(purpose).dumps(value)


def unsign(text: str, purpose: str) -> Any:
    """What was signed for that purpose, with this key or an older one. Raises BadSignature."""
    return _signer(purpose).loads(text)


def fingerprints(text: bytes, purpose: str) -> Iterator[str]:
    """What a text is recognised by, with each key, the newest first: who has none cannot guess it.

    For what may hold a password, of which a bare digest would tell whether a guess is right.
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
    """JSON as the serializer wants it: short, as what it gives stands in addresses."""

    @staticmethod
    def dumps(value: Any) -> str:
        return orjson.dumps(value).decode()

    loads = staticmethod(orjson.loads)
