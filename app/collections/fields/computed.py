"""The field type `computed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from app.collections.fields.boolean import BooleanField
from app.collections.fields.datetime import DatetimeField
from app.collections.fields.decimal import AnyDecimalField
from app.collections.fields.face import Face
from app.collections.fields.field import Field, JsonType
from app.collections.fields.number import NumberField
from app.collections.fields.text import TextField
from app.types import JSONMapping, JSONObject, cached_property
from app.web.languages import lazy_gettext

RETURN_TYPES: dict[str, type[Field]] = {
    kind.type: kind
    for kind in (TextField, NumberField, AnyDecimalField, BooleanField, DatetimeField)
}


class ComputedField(Field):
    """A value that an expression gives whenever the record is read; nothing is stored."""

    type = "computed"
    label = lazy_gettext("Computed")
    known_options: ClassVar[tuple[str, ...]] = ()
    may_be_unique = is_written = False
    takes_default = takes_expression = False
    json_schema: ClassVar[JSONMapping] = {"type": ["string", "number", "boolean", "null"]}

    @cached_property
    def like(self) -> Field:
        """The field that holds what the expression gives."""
        return RETURN_TYPES[self.return_type or ""](self.name)

    @property
    def face(self) -> Face:  # type: ignore[override]
        return self.like.face

    @property
    def choices(self) -> Mapping[str, str]:
        """The choices of the field that it is like."""
        return self.like.choices

    @property
    def value_schema(self) -> JSONObject:
        return self.like.value_schema

    def clean(self, value: object) -> object:
        """Clean as the type of the value does; nothing of it is stored."""
        return self.like.clean(value)

    def from_text(self, text: str) -> object:
        """Parse as the type of the value does."""
        return self.like.from_text(text)

    def shown(self, value: object) -> object:
        """As the type of the value shows it."""
        return self.like.shown(value)

    @cached_property
    def json_type(self) -> JsonType:
        return self.like.json_type

    @cached_property
    def encode(self) -> Callable[[object], object]:
        return self.like.encode
