"""A webhook's headers: values are encrypted where they are stored, `***` where they are shown.

`***` keeps a stored value while the address stays on its host: an admin who cannot read a value
cannot have it sent to a host of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from app.db import reencryption
from app.errors import problem
from app.outbound import header_values
from app.outbound.header_values import MASK

ENTER_AGAIN = "Enter the value of {} again: *** keeps a stored value on the same host only."
Stored = Mapping[str, Any]


def masked(stored: Stored | None) -> dict[str, str] | None:
    """Headers as they are shown."""
    return None if stored is None else dict.fromkeys(stored, MASK)


def decrypted(stored: Stored | None) -> dict[str, str]:
    """Headers as they are sent, without values that none of the configured keys reads."""
    read = {name: header_values.decrypt_or(value) for name, value in (stored or {}).items()}
    return {name: value for name, value in read.items() if value is not None}


def problems(headers: Mapping[str, str], stored: Stored | None, same_host: bool) -> list[Any]:
    """What is wrong with the `***` in headers."""
    return [
        problem("headers", "required", ENTER_AGAIN.format(name))
        for name, value in headers.items()
        if value == MASK and not (same_host and name in (stored or {}))
    ]


def encrypted(headers: Mapping[str, str] | None, stored: Stored | None) -> dict[str, Any] | None:
    """Headers as they are stored."""
    if headers is None:
        return None
    return {
        name: (stored or {})[name] if value == MASK else header_values.encrypt(value)
        for name, value in headers.items()
    }


def host_of(url: str) -> tuple[str, str | None, int | None]:
    """Where requests to an address go: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


@reencryption.json_column("webhooks", "headers")
def renewed(stored: Stored | None) -> tuple[dict[str, Any] | None, int]:
    """Headers under the newest key, and how many values were not. Raises InvalidToken."""
    if stored is None:
        return None, 0
    values = {name: header_values.reencrypt(value) for name, value in stored.items()}
    return values, sum(values[name] is not value for name, value in stored.items())
