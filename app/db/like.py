"""Case-insensitive search in text columns."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa


def contains_ignoring_case(
    column: sa.SQLColumnExpression[Any], text: str
) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text, in any case."""
    return sa.func.lower(column).contains(text.lower(), autoescape=True)


def search_key(text: str) -> str:
    """Return the longest ASCII part of a text: databases fold the case of ASCII only."""
    return max(re.findall(r"[\x00-\x7f]+", text), key=len, default=text)
