"""The field type `email`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from app import rules
from app.accounts.service import is_email
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.types import JSONMapping
from app.web.languages import lazy_gettext


class EmailField(Field):
    """An e-mail address."""

    type = "email"
    label = lazy_gettext("Email address")
    face = Face(WidgetKind.EMAIL, style="whole")
    fills_indexes = True
    known_options = ("index", "search")
    names_records = True
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "email"}

    @property
    def example(self) -> str:
        """An address of nobody."""
        return "ada@example.com"

    def marked(self, mark: str, number: Callable[[], int]) -> str:
        return f"{mark}@isolation.example"

    def clean(self, value: object) -> str:
        """An address, kept as sent but for Unicode's form NFC."""
        value = rules.composed(value) if isinstance(value, str) else ""
        if not is_email(value):
            raise InvalidValue("invalid_email", "Must be an e-mail address.")
        self._check_index_size(value)
        return value

    def from_text(self, text: str) -> str:
        """Any text may be asked for."""
        return text
