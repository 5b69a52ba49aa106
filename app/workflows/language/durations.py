"""Durations such as `30s`, `5m`, `2h`, `1d`."""

from __future__ import annotations

import re

FORM = re.compile(r"([1-9][0-9]{0,8})([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400


def seconds(text: object) -> int | None:
    """The seconds of a duration; None if it is invalid or longer than a year."""
    match = FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    length = int(match[1]) * UNITS[match[2]]
    return length if length <= LONGEST else None
