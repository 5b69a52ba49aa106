"""Encodes lists of records one by one, up to the size limit."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from app.records.store.sizes import SizeLimit
from app.rest.serialization import dumps


def limit_size(items: Iterable[object]) -> list[orjson.Fragment]:
    """The items as JSON. Raises AnswerTooLarge as soon as they exceed the limit."""
    room, found = SizeLimit(), []
    for item in items:
        text = dumps(item)
        room.take(len(text))
        found.append(orjson.Fragment(text))
    return found
