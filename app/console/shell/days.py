"""Days as pages name them, and the ranges of days that logs are filtered by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import cast

import flask_babel

from app import clock
from app.web.languages import gettext, ngettext

RANGES = (1, 7, 30)
"""Days, up to and including today."""
ALL = "all"
"""The range without a start."""


@dataclass(frozen=True)
class Range:
    """The last days, and the text of the filter for the start of the first of them, in UTC."""

    days: int
    name: str
    start: str


def name_of_day(day: date) -> str:
    """Today, yesterday or the full date."""
    names = {0: gettext("Today"), 1: gettext("Yesterday")}
    days_ago = (clock.now().date() - day).days
    return names.get(days_ago) or cast(str, flask_babel.format_date(day, "full"))


def ranges() -> list[Range]:
    """The ranges that lists with filters by time offer."""
    today = clock.now().date()
    return [Range(days, _name(days), f"{today - timedelta(days - 1)}T00:00") for days in RANGES]


def _name(days: int) -> str:
    return gettext("Today") if days == 1 else ngettext("%(num)s day", "%(num)s days", days)
