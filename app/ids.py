"""Ids of rows: UUIDs in the order of time."""

from __future__ import annotations

from datetime import datetime

from uuid_utils import uuid7


def new_id() -> str:
    """A time-ordered UUID (version 7), within a process in the order of the calls."""
    return str(uuid7())


def first_id(moment: datetime) -> str:
    """What all ids made at or after a moment, by the millisecond, compare as greater than."""
    digits = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}"
