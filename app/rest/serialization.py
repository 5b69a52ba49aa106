"""JSON as responses and stored instances have it: timestamps in RFC 3339, in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from app import clock


def dumps(value: object) -> bytes:
    """Serialize a value to JSON."""
    return orjson.dumps(value, default=_default, option=orjson.OPT_PASSTHROUGH_DATETIME)


def dumps_text(value: object) -> str:
    """Serialize a value to JSON text, to store it."""
    return dumps(value).decode()


def loads(text: str) -> Any:
    """Parse stored JSON; `json_input` parses what clients send."""
    return orjson.loads(text)


def plain(value: object) -> Any:
    """Return a value after a JSON round trip."""
    return orjson.loads(dumps(value))


def _default(value: object) -> str:
    if isinstance(value, datetime):
        return clock.iso(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
