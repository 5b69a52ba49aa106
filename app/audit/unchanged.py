"""The values that, with a stored change of a record, make the whole record before and after it.

The change feed gives out whole records. A creation has all values, as its actor is its creator,
unless an import says otherwise; an update lacks those that it did not change, and both it and a
deletion lack most system fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from app.audit.append import text as as_text

Row = Mapping[str, Any]
Texts = dict[str, str]
LONGEST = 8192
"""Longer values are not stored again with each change: later changes, or the record, have them."""


class Unchanged(NamedTuple):
    """Values by column, as texts."""

    both: Texts
    """Before and after the change."""
    before: Texts
    after: Texts
    long: dict[str, int]
    """The columns whose values were too long, and their lengths."""


NOTHING = Unchanged({}, {}, {}, {})
NONE_LONG = "{}]"
CREATION, EDITOR = ("created_at", "created_by"), ("updated_at", "updated_by")


def dump(fields: Iterable[str], old: Row, new: Row | None) -> str:
    """The text to store with an update or a deletion of a record."""
    both, long = _texts(old, CREATION), dict[str, int]()
    if new is not None:
        for name in fields:
            value = old.get(name)
            if value is not None and value == new.get(name):
                text = as_text(value) or ""
                if len(text) > LONGEST:
                    long[name] = len(text)
                else:
                    both[name] = text
    after = {} if new is None else _texts(new, ("updated_by",))
    return orjson.dumps((both, _texts(old, EDITOR), after, long)).decode()


def dump_creation(new: Row) -> str:
    """The text to store with a creation whose actor and time are not those of the record."""
    return orjson.dumps(({}, {}, _texts(new, CREATION), {})).decode()


def dump_restored(row: Row) -> str:
    """The text to store with the creation of a record that comes back from the trash."""
    texts = _texts(row, CREATION)
    return orjson.dumps((texts, {}, texts, {})).decode()


def load(text: str | None) -> Unchanged:
    """Parse the text that `dump` returned."""
    return Unchanged(*orjson.loads(text)) if text else NOTHING


def long_size(text: str | None) -> int:
    """The length of the values that were too long to store."""
    return sum(load(text).long.values()) if text and not text.endswith(NONE_LONG) else 0


def _texts(row: Row, names: Iterable[str]) -> Texts:
    return {name: as_text(row[name]) or "" for name in names if row.get(name) is not None}
