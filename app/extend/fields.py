"""Fields of schemas, as the API uses them: those of marshmallow, and bounded ones."""

from __future__ import annotations

from marshmallow.fields import Boolean, Date, Decimal, Dict, Float, List, Nested, String

from app.web.fields import Choice, Id, Integer, Text, Timestamp

__all__ = [
    "Boolean",
    "Choice",
    "Date",
    "Decimal",
    "Dict",
    "Float",
    "Id",
    "Integer",
    "List",
    "Nested",
    "String",
    "Text",
    "Timestamp",
]
