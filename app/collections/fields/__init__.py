"""The field types: validation, storage and JSON form.

One class per type, each in a file of its own; extensions register theirs by the same door. `clean`
turns a JSON value into the stored one or raises `InvalidValue`; `from_text` does so for the text of
a query parameter; `shown` turns the stored value back into JSON.
"""

from app.collections.fields.boolean import BooleanField
from app.collections.fields.computed import RETURN_TYPES, ComputedField
from app.collections.fields.date import DateField
from app.collections.fields.datetime import DatetimeField
from app.collections.fields.decimal import AnyDecimalField, DecimalField, Exact
from app.collections.fields.email import EmailField
from app.collections.fields.field import (
    LONGEST_INDEXED,
    PEOPLE,
    Encoder,
    Field,
    InvalidValue,
    encoders_of,
    typed_value,
)
from app.collections.fields.file import FileField
from app.collections.fields.json import JsonField, JsonText
from app.collections.fields.many import (
    ListField,
    ReferencesField,
    TextListField,
    UsersField,
    entries,
)
from app.collections.fields.missing import MissingField
from app.collections.fields.number import Number, NumberField, plain_number
from app.collections.fields.reference import ReferenceField
from app.collections.fields.select import MultiSelectField, SelectField, removed_choices
from app.collections.fields.sequence import SequenceField
from app.collections.fields.system import SYSTEM_FIELDS
from app.collections.fields.text import TextField
from app.collections.fields.url import UrlField
from app.collections.fields.user import UserField
from app.types import JSONMapping

__all__ = [
    "LONGEST_INDEXED",
    "MULTIPLE",
    "PEOPLE",
    "RETURN_TYPES",
    "SYSTEM_FIELDS",
    "TYPES",
    "AnyDecimalField",
    "BooleanField",
    "ComputedField",
    "DateField",
    "DatetimeField",
    "DecimalField",
    "Encoder",
    "Exact",
    "Field",
    "FileField",
    "InvalidValue",
    "JsonField",
    "JsonText",
    "ListField",
    "MissingField",
    "MultiSelectField",
    "Number",
    "NumberField",
    "ReferenceField",
    "ReferencesField",
    "SelectField",
    "SequenceField",
    "TextField",
    "TextListField",
    "UserField",
    "UsersField",
    "encoders_of",
    "entries",
    "kind_of",
    "plain_number",
    "register",
    "removed_choices",
    "typed_value",
]

TYPES: dict[str, type[Field]] = {}
"""The types by name: those of the product, then those of extensions."""


def register(kind: type[Field]) -> None:
    """Add a field type. Raises ValueError if there is one of this name."""
    if kind.type in TYPES:
        raise ValueError(f"There is a field type {kind.type} already.")
    TYPES[kind.type] = kind


for _kind in (
    TextField,
    NumberField,
    DecimalField,
    BooleanField,
    DatetimeField,
    DateField,
    EmailField,
    UrlField,
    JsonField,
    SelectField,
    MultiSelectField,
    TextListField,
    ReferenceField,
    UserField,
    FileField,
    SequenceField,
    ComputedField,
):
    register(_kind)
MULTIPLE: dict[str, type[Field]] = {kind.type: kind for kind in (ReferencesField, UsersField)}


def kind_of(spec: JSONMapping) -> type[Field] | None:
    """The class of a field's spec; None if the type is unknown."""
    kind = TYPES.get(spec["type"])
    return MULTIPLE.get(spec["type"], kind) if spec.get("multiple") else kind
