"""JSON of stored instance data: plain values, timestamps in the API's format."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from app import clock


def dumps(value: object) -> str:
    """JSON text."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME).decode()


def loads(text: str) -> Any:
    """The value of a JSON text."""
    return orjson.loads(text)


def plain(value: object) -> Any:
    """A value after a JSON round trip."""
    return loads(dumps(value))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return clock.iso(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
