"""Rows of inputs in a form: how many of them it has, and buttons that move them (ADR 59)."""

from __future__ import annotations

import re
from typing import Any

STEPS = {"up": -1, "down": 1}


def count(text: str, most: int) -> int:
    """The number of rows that a form says to have, at most `most`; none for nonsense."""
    return min(int(text), most) if re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) else 0


def move(rows: list[Any], index: int, way: str) -> None:
    """Move a row `up` or `down` by one; the first and the last one stay, and so do all others."""
    other = index + STEPS[way]
    if 0 <= index < len(rows) and 0 <= other < len(rows):
        rows[index], rows[other] = rows[other], rows[index]
