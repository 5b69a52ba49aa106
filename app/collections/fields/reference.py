"""The field type `reference`."""

from __future__ import annotations

from typing import ClassVar

from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.db.types import Id
from app.ids import new_id
from app.types import JSONMapping
from app.web.languages import lazy_gettext

COMPARISONS = ("=", "!=", "contains", "starts", "empty", "filled")  # also of the name


class ReferenceField(Field):
    """The id of a record of another collection, in the same account."""

    type = "reference"
    label = lazy_gettext("Reference")
    face = Face(WidgetKind.REFERENCE, COMPARISONS, "reference", width=16, rank=0)
    column_type = Id
    takes_default = takes_expression = False
    default_on_delete = "restrict"
    is_indexed = True  # it is looked up whenever its target is deleted
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "uuid"}

    def sample(self) -> str:
        """An id of no record."""
        return new_id()

    def clean(self, value: object) -> str:
        """A text; whether such a record exists is asked of the database for all fields at once."""
        if not isinstance(value, str):
            raise InvalidValue("invalid_type", "Must be the id of a record.")
        return value.lower()  # UUIDs are read in any case, and written in lower case
