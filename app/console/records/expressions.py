"""Filter expressions of the rule language, from what people type."""

from __future__ import annotations

from collections.abc import Iterable

from app import clock, rules
from app.collections.fields import Field


def contains(text: str, names: Iterable[str]) -> str:
    """An expression for a text within any of the fields."""
    return matches(f"%{escape_like(text)}%", names)


def matches(pattern: str, names: Iterable[str]) -> str:
    """An expression for a pattern that any of the fields matches."""
    return " || ".join(f"{name} ~ {quote(pattern)}" for name in names)


def literal(field: Field, text: str) -> str:
    """A value of a field as a literal. Raises InvalidValue."""
    field = field.like
    if field.rule_type in (rules.Type.TEXT, rules.Type.LIST):
        return quote(text)
    value = field.from_text(text)
    if isinstance(value, bool):
        return str(value).lower()
    if field.rule_type is rules.Type.DATETIME:
        return quote(clock.iso(value))
    return quote(value.isoformat()) if field.rule_type is rules.Type.DATE else repr(value)


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escape_like(text: str) -> str:
    """A text with the wildcards of a pattern escaped."""
    return text.replace("\\", "\\\\").replace("%", "\\%")
