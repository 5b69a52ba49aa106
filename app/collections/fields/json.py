"""The field type `json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from app import rules
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.errors import Malformed
from app.types import JSONMapping
from app.web import serialization
from app.web.languages import lazy_gettext


def text_of(value: object) -> str:
    return orjson.dumps(value).decode()


def parse_json(text: str, *, infinite: bool = False) -> object:
    """The value of JSON that somebody has typed. Raises InvalidValue."""
    try:
        return serialization.parse(text.encode("utf-8", "replace"), infinite=infinite)
    except Malformed as error:
        message = error.extra["detail"][0]["msg"].replace("The body", "This")
        raise InvalidValue("invalid_json", message) from error


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON kept as the text that was sent, so that it comes back with its order and its numbers."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:
        # Values are objects and arrays. A text was read from a record, and is JSON already.
        return value if value is None or isinstance(value, str) else text_of(value)


class JsonField(Field):
    """A JSON object or array."""

    type = "json"
    label = lazy_gettext("JSON")
    face = Face(WidgetKind.JSON, (), width=40, rank=2)
    is_long = True
    column_type = JsonText()
    rule_type = rules.Type.JSON
    takes_expression = False  # its defaults may be objects
    known_options: ClassVar[tuple[str, ...]] = ()
    may_be_unique = False
    filterable = False
    reads_differently = True
    # A list of types, of which each would need keywords of its own, stops some client generators.
    json_schema: ClassVar[JSONMapping] = {
        "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "array", "items": {}}]
    }

    @property
    def example(self) -> object:
        return {"key": "value"}

    def sample(self) -> object:
        """An empty object, to be filled."""
        return {}

    def marked(self, mark: str, number: Callable[[], int]) -> object:
        return {"value": mark}

    def clean(self, value: object) -> object:
        """An object or array whose numbers JSON can write."""
        if not isinstance(value, dict | list):
            raise InvalidValue("invalid_json", "Must be a JSON object or array.")
        if not serialization.is_serializable(value):
            raise InvalidValue("number_out_of_range", serialization.OUT_OF_RANGE)
        return serialization.without_rounding(value)

    def parse(self, text: str, *, infinite: bool = False) -> object:
        return parse_json(text, infinite=infinite)

    def written(self, value: object) -> str:
        """JSON in several lines."""
        # JSON of a record is passed through unparsed.
        loaded = json.loads(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else value
        return json.dumps(loaded, indent=2, ensure_ascii=False)

    def read_back(self, value: object) -> str | None:
        return None if value is None else text_of(value)

    def shown(self, value: str) -> object:
        """The stored text, passed through without parsing it."""
        return orjson.Fragment(value)
