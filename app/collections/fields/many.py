"""Lists: of ids, for references and users with `multiple: true`, and of texts; stored as JSON.

`app.collections.links` keeps the entries in a table as well, by which they are found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import orjson

from app import rules
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import PEOPLE, Field, InvalidValue
from app.collections.fields.json import JsonField
from app.collections.fields.reference import ReferenceField
from app.collections.fields.user import UserField
from app.types import JSONMapping, JSONObject, cached_property
from app.web.languages import lazy_gettext

ITEMS, MOST_ITEMS = 100, 1000
LENGTH, MOST_LENGTH = 200, 500  # characters of an entry, which an index holds
COMPARISONS = ("contains", "empty", "filled")


class ListField(JsonField):
    """A list of distinct ids."""

    may_be_cut = False
    is_list = True
    takes_default = False
    rule_type = rules.Type.LIST
    known_options: ClassVar[tuple[str, ...]] = ("max_items",)
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
        self._check_count(value)
        if not all(isinstance(one, str) for one in value):
            raise InvalidValue("invalid_type", "Each entry must be an id.")
        return self._distinct([one.lower() for one in value])

    def _check_count(self, value: list[object]) -> None:
        if len(value) > self.most_items:
            raise InvalidValue("too_many_items", f"Takes at most {self.most_items} entries.")

    def _distinct(self, entries: list[str]) -> list[str]:
        if len(set(entries)) < len(entries):
            raise InvalidValue("duplicate_item", "Must have each entry only once.")
        if self.required and not entries:
            raise InvalidValue("required_missing", "This field is required.")
        return entries

    def ids(self, value: Any) -> list[str]:
        """The entries of a value, stored or to be stored."""
        found = orjson.loads(value) if isinstance(value, str) else value
        return found or []

    def listed(self, value: str) -> list[str]:
        return self.ids(value)

    def entry(self, value: object) -> str:
        """An id in small letters."""
        return super().entry(value).lower()

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


class TextListField(ListField):
    """Free texts such as tags, each once, in the order sent."""

    type = "text_list"
    label = lazy_gettext("List of texts")
    face = Face(WidgetKind.TEXTS, COMPARISONS, width=24)
    known_options = ("max_items", "max_length", "search")
    json_schema: ClassVar[JSONMapping] = {
        "type": "array",
        "items": {"type": "string"},
        "uniqueItems": True,
    }

    @property
    def example(self) -> list[str]:
        return ["sample"]

    def sample(self) -> list[str]:
        return self.example

    def marked(self, mark: str, number: Callable[[], int]) -> list[str]:
        return [mark]

    def texts(self, value: Any) -> list[str]:
        """The entries."""
        return self.ids(value)

    def entry(self, value: object) -> str:
        """A composed text."""
        return Field.entry(self, value)

    @cached_property
    def longest(self) -> int:
        """The characters that an entry may have."""
        return int(self.options.get("max_length", LENGTH))

    def clean(self, value: object) -> list[str]:
        """A list of distinct texts that are not blank, composed."""
        if not isinstance(value, list):
            raise InvalidValue("invalid_type", "Must be a list of texts.")
        self._check_count(value)
        texts = []
        for one in value:
            if not isinstance(one, str):
                raise InvalidValue("invalid_type", "Each entry must be a text.")
            text = rules.composed(one)
            if not text.strip():
                raise InvalidValue("too_short", "An entry may not be blank.")
            if len(text) > self.longest:
                message = f"An entry must have at most {self.longest} characters."
                raise InvalidValue("too_long", message)
            texts.append(text)
        return self._distinct(texts)

    @property
    def value_schema(self) -> JSONObject:
        """A list of texts."""
        items = {"type": "string", "minLength": 1, "maxLength": self.longest}
        return {**self.json_schema, "items": items, "maxItems": self.most_items}

    def definition_problems(self) -> Iterator[str]:
        """The options are whole numbers within their bounds."""
        yield from super().definition_problems()
        longest = self.options.get("max_length", LENGTH)
        if type(longest) is not int or not 1 <= longest <= MOST_LENGTH:
            yield f"max_length must be a whole number from 1 to {MOST_LENGTH}."
        if self.default is not None:
            yield "A list of texts has no default."


def entries(field: object, value: Any) -> list[str]:
    """The ids in a value of a reference, a user or a list of them."""
    if isinstance(field, ListField):
        return field.ids(value)
    return [] if value is None else [value]
