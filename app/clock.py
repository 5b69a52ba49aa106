"""The one source of the time of day, and the one text form of it (contract section 1)."""

from datetime import UTC, datetime

from app.rules import values

OFFSET = len("+00:00")


def now() -> datetime:
    """The present moment, in UTC."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds: `2026-11-20T12:00:00.123456Z`."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[:-OFFSET] + "Z"


def parse(text: str) -> datetime:
    """The moment an ISO 8601 text names; without an offset it is UTC. Raises ValueError."""
    return values.moment(text)
