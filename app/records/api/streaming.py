"""Encodes lists of records one by one, up to the size limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from app.records.store.sizes import SizeLimit
from app.rest.responses import dumps


def limit_size(items: Iterable[Any]) -> list[orjson.Fragment]:
    """The items as JSON. Raises AnswerTooLarge as soon as they exceed the limit."""
    room, fragments = SizeLimit(), []
    for item in items:
        text = dumps(item)
        room.take(len(text))
        fragments.append(orjson.Fragment(text))
    return fragments
