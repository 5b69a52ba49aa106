"""Lengths of time as definitions write them: `30s`, `5m`, `2h`, `1d`."""

from __future__ import annotations

import re

FORM = re.compile(r"([1-9][0-9]{0,8})([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400


def seconds(text: object) -> int | None:
    """How many seconds a text means; None where it is no length of time up to a year."""
    found = FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    length = int(found[1]) * UNITS[found[2]]
    return length if length <= LONGEST else None
