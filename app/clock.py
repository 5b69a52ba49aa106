"""The clock, and the text form of timestamps."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from app.rules import values

OFFSET = len("+00:00")


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def is_due(moment: datetime) -> bool:
    """Whether a moment has come, or comes within a minute."""
    return moment <= now() + timedelta(minutes=1)


def seconds_until_midnight() -> float:
    """Return the seconds until the next day in UTC begins."""
    today = now()
    midnight = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - today).total_seconds()


@lru_cache(4)  # a write formats the same moment six times
def iso(moment: datetime) -> str:
    """Format as RFC 3339 in UTC with microseconds: `2026-11-20T12:00:00.123456Z`."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[:-OFFSET] + "Z"


def iso_or_none(moment: datetime | None) -> str | None:
    """Format as `iso` does; None stays None."""
    return None if moment is None else iso(moment)


def parse_stored(text: str | None) -> datetime | None:
    """Parse a moment that `iso` wrote; None stays None. Raises ValueError."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is UTC else parse(text)


def parse(text: str) -> datetime:
    """Parse ISO 8601; UTC unless it has an offset. Raises ValueError."""
    return values.moment(text)
