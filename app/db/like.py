"""Texts that columns mention, in whatever case."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa


def told(column: Any, text: str) -> Any:
    """The condition that a column holds a text."""
    return sa.func.lower(column).contains(text.lower(), autoescape=True)


def searched(text: str) -> str:
    """The part of a text by which databases find it: of ASCII, as they know no other case."""
    return max(re.findall(r"[\x00-\x7f]+", text), key=len, default=text)
