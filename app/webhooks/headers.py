"""Webhook headers: values are stored encrypted and shown as `***`.

`***` keeps the stored value only while the URL stays on its host: an admin who cannot read a
value cannot send it to another host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from app.db import reencryption
from app.errors import problem
from app.outbound import header_values
from app.outbound.header_values import MASK
from app.types import JSONMapping, JSONObject

REENTER_VALUE = "Enter the value of {} again: *** keeps a stored value only on the same host."
Stored = JSONMapping


def masked(stored: Stored | None) -> dict[str, str] | None:
    """Headers with masked values."""
    return None if stored is None else dict.fromkeys(stored, MASK)


def decrypted(stored: Stored | None) -> dict[str, str]:
    """Headers to send; omits values that no configured key decrypts."""
    values = {name: header_values.decrypt_or(value) for name, value in (stored or {}).items()}
    return {name: value for name, value in values.items() if value is not None}


def problems(headers: Mapping[str, str], stored: Stored | None, same_host: bool) -> list[Any]:
    """Problems of `***` values that cannot keep a stored value."""
    return [
        problem("headers", "required", REENTER_VALUE.format(name))
        for name, value in headers.items()
        if value == MASK and not (same_host and name in (stored or {}))
    ]


def encrypted(headers: Mapping[str, str] | None, stored: Stored | None) -> JSONObject | None:
    """Headers to store."""
    if headers is None:
        return None
    return {
        name: (stored or {})[name] if value == MASK else header_values.encrypt(value)
        for name, value in headers.items()
    }


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


@reencryption.json_column("webhooks", "headers")
def reencrypted(stored: Stored | None) -> tuple[JSONObject | None, int]:
    """Headers encrypted with the newest key, and how many were re-encrypted. Raises
    InvalidToken.
    """
    if stored is None:
        return None, 0
    values = {name: header_values.reencrypt(value) for name, value in stored.items()}
    return values, sum(values[name] is not value for name, value in stored.items())
