"""The field type `json`."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from app import rules
from app.collections.fields.field import Field, InvalidValue
from app.types import JSONMapping
from app.web import json_input


def text_of(value: object) -> str:
    return orjson.dumps(value).decode()


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON kept as the text that was sent, so that it comes back with its order and its numbers."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:
        return None if value is None else text_of(value)


class JsonField(Field):
    """A JSON object or array."""

    type = "json"
    column_type = JsonText()
    rule_type = rules.Type.JSON
    known_options = frozenset()
    may_be_unique = False
    filterable = False
    reads_differently = True
    # A list of types, of which each would need keywords of its own, stops some client generators.
    json_schema: ClassVar[JSONMapping] = {
        "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "array", "items": {}}]
    }

    def clean(self, value: object) -> object:
        """An object or array whose numbers JSON can write."""
        if not isinstance(value, dict | list):
            raise InvalidValue("invalid_json", "Must be a JSON object or array.")
        if not json_input.is_serializable(value):
            raise InvalidValue("number_out_of_range", json_input.OUT_OF_RANGE)
        return json_input.plain(value)

    def read_back(self, value: object) -> str | None:
        return None if value is None else text_of(value)

    def shown(self, value: str) -> object:
        """The stored text, passed through without parsing it."""
        return orjson.Fragment(value)
