"""The field type `datetime`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import ClassVar

from app import clock, rules
from app.collections.fields.date import DateField
from app.collections.fields.face import ORDER, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue, JsonType
from app.db.types import UtcDateTime
from app.rules import values
from app.types import JSONMapping, cached_property
from app.web.languages import lazy_gettext


class DatetimeField(Field):
    type = "datetime"
    label = lazy_gettext("Date and time")
    face = Face(WidgetKind.MOMENT, ORDER, "moment", width=16, rank=0, style="whole")
    column_type = UtcDateTime()
    rule_type = rules.Type.DATETIME
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "date-time"}

    @property
    def example(self) -> str:
        """A moment that does not pass."""
        return "2026-01-31T10:00:00Z"

    def sample(self) -> str:
        return clock.iso(clock.now())

    def marked(self, mark: str, number: Callable[[], int]) -> datetime:
        """Now, as no moment tells whose it is."""
        return clock.now()

    def clean(self, value: object) -> datetime:
        """ISO 8601; without an offset it is UTC."""
        try:
            if not isinstance(value, str) or len(value) < len("2026-01-01T00"):
                raise ValueError
            return values.moment(value)
        except ValueError:
            message = "Must be an ISO 8601 date and time such as 2026-11-20T12:00:00Z."
            raise InvalidValue("invalid_datetime", message) from None

    def from_text(self, text: str) -> datetime:
        """As `clean`; a date is the first moment of its day in UTC, as in filters."""
        with suppress(InvalidValue):
            return values.midnight(DateField(self.name).clean(text))
        return self.clean(text)

    def written(self, value: object) -> str:
        """As browsers write moments, to the millisecond."""
        return str(value).removesuffix("Z").removesuffix(".000000")[:23]

    def shown(self, value: datetime | str) -> str:
        """The one format, in which SQLite keeps it, too."""
        return value if isinstance(value, str) else clock.iso(value)

    @cached_property
    def json_type(self) -> JsonType:
        """SQLite stores the text that JSON has."""
        return str

    @cached_property
    def encode(self) -> Callable[[datetime], str]:
        """`clock.iso` itself."""
        return clock.iso
