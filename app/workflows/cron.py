"""Due times as cron writes them: minute, hour, day of month, month, day of week, in UTC."""

from __future__ import annotations

import re
from datetime import datetime

from croniter import CroniterError, croniter

# No hashed or random times, which differ between processes; no seconds and no nicknames.
FORM = re.compile(r"[0-9A-Za-z#*,/?-]{1,60}( +[0-9A-Za-z#*,/?-]{1,60}){4}")
CHANCE = re.compile(r"(^|[ ,])[rRhH]([ ,(/]|$)")


def problem(text: object) -> str | None:
    """Why a text names no due times, if so."""
    if not isinstance(text, str) or not FORM.fullmatch(text.strip()) or CHANCE.search(text):
        return "Five fields are needed: minute, hour, day of month, month, day of week."
    try:
        following(text, datetime(2026, 1, 1))  # noqa: DTZ001 - any moment will do
    except (CroniterError, ValueError, KeyError, OverflowError):
        return "This names no time that ever comes."
    return None


def following(text: str, moment: datetime) -> datetime:
    """The first due time after a moment."""
    found: datetime = croniter(text.strip(), moment).get_next(datetime)
    return found
