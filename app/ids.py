"""Row ids: time-ordered UUIDs."""

from __future__ import annotations

from datetime import datetime

from uuid_utils import uuid7

NIL = "00000000-0000-0000-0000-000000000000"
"""The id of the system account."""


def new_id() -> str:
    """Return a UUID version 7; ids of one process sort in the order of the calls."""
    return str(uuid7())


def first_id(moment: datetime) -> str:
    """Return a lower bound of all ids made at or after a moment, by the millisecond."""
    digits = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}"
