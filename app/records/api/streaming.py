"""Answers that are lists of records: written one by one, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from app.records.store.sizes import Room
from app.rest.responses import dumps


def within_bounds(items: Iterable[Any]) -> list[orjson.Fragment]:
    """Each of the items as JSON. Raises AnswerTooLarge before all of it is written."""
    room, found = Room(), []
    for item in items:
        text = dumps(item)
        room.take(len(text))
        found.append(orjson.Fragment(text))
    return found
