"""The field type `user`."""

from __future__ import annotations

from typing import ClassVar

from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import PEOPLE, InvalidValue
from app.collections.fields.reference import COMPARISONS, ReferenceField
from app.types import JSONMapping
from app.web.languages import lazy_gettext


class UserField(ReferenceField):
    """The id of a user of the record's account."""

    type = "user"
    label = lazy_gettext("User")
    face = Face(WidgetKind.PERSON, COMPARISONS, "reference", width=16, rank=0)
    takes_expression = True
    default_on_delete = "set_null"
    json_schema: ClassVar[JSONMapping] = {
        "type": "string",
        "format": "uuid",
        "description": "The id of a user of the account.",
    }

    @property
    def leads_to(self) -> str:
        return PEOPLE

    def clean(self, value: object) -> str:
        """A text; whether such a user exists, one query finds for all fields."""
        if not isinstance(value, str):
            raise InvalidValue("invalid_type", "Must be the id of a user.")
        return value.lower()
