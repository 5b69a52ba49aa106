"""Values of a webhook's headers: encrypted where they are stored, `***` where they are shown.

They hold others' credentials. `***` keeps a stored value as long as the address stays on its host:
an admin who cannot read a value cannot have it sent to a host of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import InvalidToken

from app import crypto, reencryption
from app.errors import problem

HIDDEN = "***"
SEALED = "encrypted"  # the one property of a stored value
ENTER_AGAIN = "Enter the value of {} again: *** keeps a stored value on the same host only."
Stored = Mapping[str, Any]


def hidden(stored: Stored | None) -> dict[str, str] | None:
    """Headers as they are shown."""
    return None if stored is None else dict.fromkeys(stored, HIDDEN)


def revealed(stored: Stored | None) -> dict[str, str]:
    """Headers as they are sent; a value that no key reads is left out."""
    opened = {name: _opened(value) for name, value in (stored or {}).items()}
    return {name: value for name, value in opened.items() if value is not None}


def problems(headers: Mapping[str, str], stored: Stored | None, stays: bool) -> list[Any]:
    """What is wrong with the `***` in headers; `stays`: the address is on the same host."""
    return [
        problem("headers", "required", ENTER_AGAIN.format(name))
        for name, value in headers.items()
        if value == HIDDEN and not (stays and name in (stored or {}))
    ]


def sealed(headers: Mapping[str, str] | None, stored: Stored | None) -> dict[str, Any] | None:
    """Headers as they are stored."""
    if headers is None:
        return None
    known = stored or {}
    return {name: known[name] if text == HIDDEN else _seal(text) for name, text in headers.items()}


def host_of(url: str) -> tuple[str, str | None, int | None]:
    """Where requests to an address go: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


@reencryption.of_json("webhooks", "headers")
def renewed(stored: Stored | None) -> tuple[dict[str, Any] | None, int]:
    """Headers under the newest key, and how many values were not. Raises InvalidToken."""
    if stored is None:
        return None, 0
    values = {name: _renewed(value) for name, value in stored.items()}
    return values, sum(values[name] is not value for name, value in stored.items())


def _seal(text: str) -> dict[str, str]:
    return {SEALED: crypto.encrypt(text)}


def _renewed(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _seal(value)  # saved by a former version
    text = crypto.renewed(value[SEALED])
    return value if text is None else {SEALED: text}


def _opened(value: Any) -> str | None:
    try:
        return crypto.decrypt(value[SEALED]) if isinstance(value, Mapping) else value
    except InvalidToken:  # encrypted with a key that the settings do not name any more
        return None
