"""References and users with `multiple: true`: lists of ids, stored as JSON.

`app.collections.links` keeps the entries in a table as well, by which they are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import orjson

from app import rules
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import PEOPLE, InvalidValue
from app.collections.fields.json import JsonField
from app.collections.fields.reference import ReferenceField
from app.collections.fields.user import UserField
from app.types import JSONMapping, JSONObject, cached_property

ITEMS, MOST_ITEMS = 100, 1000
COMPARISONS = ("contains", "empty", "filled")


class ListField(JsonField):
    """A list of distinct ids."""

    may_be_cut = False
    takes_default = False
    rule_type = rules.Type.LIST
    known_options = ("max_items",)
    json_schema: ClassVar[JSONMapping] = {
        "type": "array",
        "items": {"type": "string", "format": "uuid"},
        "uniqueItems": True,
    }

    @cached_property
    def most_items(self) -> int:
        """The number of entries that a list may have."""
        return int(self.options.get("max_items", ITEMS))

    @property
    def example(self) -> object:
        return None

    def sample(self) -> list[str]:
        return []

    def clean(self, value: object) -> list[str]:
        """A list of distinct ids; whether they exist, one query finds for all values."""
        if not isinstance(value, list):
            raise InvalidValue("invalid_type", "Must be a list of ids.")
        if len(value) > self.most_items:
            raise InvalidValue("too_many_items", f"Takes at most {self.most_items} entries.")
        if not all(isinstance(one, str) for one in value):
            raise InvalidValue("invalid_type", "Each entry must be an id.")
        ids = [one.lower() for one in value]
        if len(set(ids)) < len(ids):
            raise InvalidValue("duplicate_item", "Must have each entry only once.")
        if self.required and not ids:
            raise InvalidValue("required_missing", "This field is required.")
        return ids

    def ids(self, value: Any) -> list[str]:
        """The entries of a value, stored or to be stored."""
        found = orjson.loads(value) if isinstance(value, str) else value
        return found or []

    def written(self, value: object) -> str:
        """The list as JSON in one line."""
        return json.dumps(value, ensure_ascii=False)

    def shown(self, value: str) -> object:
        return orjson.loads(value)

    @property
    def value_schema(self) -> JSONObject:
        """A list of ids."""
        to = f"records of {self.collection}" if self.collection else "users of the account"
        return {
            **self.json_schema,
            "maxItems": self.most_items,
            "description": f"The ids of {to}.",
        }

    def definition_problems(self) -> Iterator[str]:
        """The option is a whole number within its bounds."""
        most = self.options.get("max_items", ITEMS)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_ITEMS:
            yield f"max_items must be a whole number from 1 to {MOST_ITEMS}."


class ReferencesField(ListField):
    """The ids of records of another collection, in the same account."""

    type = "reference"
    label = ReferenceField.label
    face = Face(WidgetKind.ENTRIES, COMPARISONS, "reference", width=24)
    default_on_delete = ReferenceField.default_on_delete


class UsersField(ListField):
    """The ids of users of the record's account."""

    type = "user"
    label = UserField.label
    face = Face(WidgetKind.ENTRIES, COMPARISONS, "reference", width=24)
    default_on_delete = UserField.default_on_delete

    @property
    def leads_to(self) -> str:
        return PEOPLE


def entries(field: object, value: Any) -> list[str]:
    """The ids in a value of a reference, a user or a list of them."""
    if isinstance(field, ListField):
        return field.ids(value)
    return [] if value is None else [value]
