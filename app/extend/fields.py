"""Fields of schemas, as the API uses them: those of marshmallow, and bounded ones.

All take marshmallow's options, such as `required=True`, `allow_none=True` and `load_default=5`. The
bounds of numbers hold for answers, too, and stand in the API description.
"""

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
