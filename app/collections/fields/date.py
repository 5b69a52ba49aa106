"""The field type `date`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import ClassVar

import sqlalchemy as sa

from app import clock, rules
from app.collections.fields.face import ORDER, Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.types import JSONMapping
from app.web.languages import lazy_gettext


class DateField(Field):
    """A day of the calendar."""

    type = "date"
    label = lazy_gettext("Date")
    face = Face(WidgetKind.DATE, ORDER, "date", width=11, rank=0, style="whole")
    column_type = sa.Date()
    rule_type = rules.Type.DATE
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "date"}

    @property
    def example(self) -> str:
        """A day that does not pass."""
        return "2026-01-31"

    def sample(self) -> str:
        return clock.now().date().isoformat()

    def marked(self, mark: str, number: Callable[[], int]) -> date:
        return clock.now().date()

    def clean(self, value: object) -> date:
        """YYYY-MM-DD."""
        try:
            if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
                raise ValueError
            return date.fromisoformat(value)
        except ValueError:
            raise InvalidValue("invalid_date", "Must be a date such as 2026-11-20.") from None

    def shown(self, value: date) -> str:
        """YYYY-MM-DD."""
        return value.isoformat()
