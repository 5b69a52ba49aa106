"""The field type `boolean`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import sqlalchemy as sa

from app import rules
from app.collections.fields.face import EQUALITY, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue, JsonType
from app.types import JSONMapping, cached_property
from app.web.languages import lazy_gettext

YES, NO = lazy_gettext("yes"), lazy_gettext("no")


class BooleanField(Field):
    """True or false."""

    type = "boolean"
    label = lazy_gettext("Yes or no")
    face = Face(WidgetKind.FLAG, EQUALITY, "choice", width=6, rank=0)
    column_type = sa.Boolean()
    rule_type = rules.Type.BOOLEAN
    json_schema: ClassVar[JSONMapping] = {"type": "boolean"}

    @property
    def choices(self) -> Mapping[str, str]:
        return {"true": YES, "false": NO}

    @property
    def example(self) -> bool:
        return True

    def marked(self, mark: str, number: Callable[[], int]) -> bool:
        return True

    def clean(self, value: object) -> bool:
        """Exactly true or false."""
        if not isinstance(value, bool):
            raise InvalidValue("invalid_type", "Must be true or false.")
        return value

    def from_text(self, text: str) -> bool:
        """The words true and false."""
        if text.lower() not in ("true", "false"):
            raise InvalidValue("invalid_type", "Must be true or false.")
        return text.lower() == "true"

    def parse(self, text: str, *, infinite: bool = False) -> bool:
        """As `from_text`."""
        return self.from_text(text)

    def written(self, value: object) -> str:
        """The words of JSON."""
        return str(value).lower()

    def shown(self, value: object) -> bool:
        """SQLite stores 0 and 1."""
        return bool(value)

    @cached_property
    def json_type(self) -> JsonType:
        """PostgreSQL returns booleans."""
        return bool
