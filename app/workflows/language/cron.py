"""Cron expressions: minute, hour, day of month, month, day of week, in UTC or another time zone.

Times are those of the zone's clocks. If a schedule has every hour, it is due whenever they show
one of its times: elapsed time counts, whatever they are set to. Of others, the times that are left
out when clocks are put forward come due together, once, at that moment; a time that comes twice
when they are put back is due once, the first time.

cronsim parses and evaluates them; it follows Debian's cron, which differs from what we document:
of two restricted day fields either is enough, also where one is a step such as `*/10`; `fri-sun`
is a range, `5-5/1` one value, and a step fits its range (cronsim takes `*/61`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

LONGEST = 200
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
EVERY_HOUR = 24
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNRESTRICTED = re.compile(r"(?<![^,])\*(?:/0*1)?(?![^,])")
ONE_VALUE = re.compile(r"(?<![^,])(\w+)-\1(?:/0*1)?(?![^,])")


class Field(NamedTuple):
    """One of the five: its values' attribute of CronSim, its bounds, and how many values differ."""

    name: str
    values: str
    first: int
    last: int
    size: int

    def problem(self, text: str) -> str | None:
        """Return what is wrong with the first invalid item; None if all are valid."""
        return next(filter(None, map(self._item_problem, text.split(","))), None)

    def _item_problem(self, item: str) -> str | None:
        span, slash, step = item.partition("/")
        try:
            self._values(item)
            most = self._values(f"{span}/1") if slash else 0
        except CronSimError:
            return (
                f"{item!r} is not a valid {self.name}: use numbers from {self.first} to"
                f" {self.last}, ascending ranges and positive steps."
            )
        if slash and int(step) > most:
            return f"The step of {item!r} is larger than its range."
        return None

    def _values(self, item: str) -> int:
        fields = [self.normal(item) if field is self else "*" for field in FIELDS]
        parsed = CronSim(" ".join(fields), EPOCH)
        return min(len(getattr(parsed, self.values)), self.size)

    def normal(self, text: str) -> str:
        """Return the field as cronsim has to read it: with a star only if it restricts nothing."""
        if UNRESTRICTED.search(text):
            return "*"
        text = ONE_VALUE.sub(r"\1", text.lower())
        if self is FIELDS[-1]:
            text = text.replace("-sun", "-7")
        return text.replace("*", f"{self.first}-{self.first + self.size - 1}")


FIELDS = (
    Field("minute", "minutes", 0, 59, 60),
    Field("hour", "hours", 0, 23, 24),
    Field("day of month", "days", 1, 31, 31),
    Field("month", "months", 1, 12, 12),
    Field("day of week", "weekdays", 0, 7, 7),  # Sunday is 0 and 7
)


def problem(text: object) -> str | None:
    """Return what is wrong with the fields of an expression; None if it is valid."""
    parts = expanded(text).split() if isinstance(text, str) and len(text) <= LONGEST else []
    if len(parts) != len(FIELDS):
        return (
            "Five fields are needed: minute, hour, day of month, month, day of week; or one of"
            f" {', '.join(ALIASES)}."
        )
    wrong = [field.problem(part) for field, part in zip(FIELDS, parts, strict=True)]
    if any(wrong):
        return " ".join(filter(None, wrong))
    try:
        following(" ".join(parts), EPOCH)
    except ValueError:
        return "This schedule never comes due."
    return None


def expanded(text: str) -> str:
    """Return the five fields of an alias, or of an expression."""
    return ALIASES.get(text.strip().lower(), text)


def timezone_problem(name: object) -> str | None:
    """Return what is wrong with the name of a time zone; None if there is such a zone."""
    if isinstance(name, str) and name in _zones():
        return None
    return "This is not the name of a time zone, such as Europe/Berlin."


@lru_cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def following(text: str, moment: datetime, timezone: str | None = None) -> datetime:
    """Return the first due time after a moment, in UTC. Raises ValueError."""
    fields = zip(FIELDS, expanded(text).split(), strict=True)
    parts = " ".join(field.normal(part) for field, part in fields)
    try:
        zone, moment = ZoneInfo(timezone or "UTC"), moment.astimezone(UTC)
        if len(CronSim(parts, EPOCH).hours) == EVERY_HOUR:
            return _next_shown(parts, moment, zone)
        on_clocks = moment.astimezone(zone).replace(tzinfo=UTC)
        for time in CronSim(parts, on_clocks):
            due = _moment(time.replace(tzinfo=None), zone)
            if due > moment:  # else the clocks were put back: it was due then
                return due
    except (CronSimError, StopIteration, ZoneInfoNotFoundError) as error:
        raise ValueError(f"The schedule {text!r} names no due time.") from error
    raise ValueError(f"The schedule {text!r} names no due time.")


def _next_shown(parts: str, moment: datetime, zone: ZoneInfo) -> datetime:
    """When the clocks of a zone next show a time, the same one twice if they are put back."""
    begin = moment.replace(microsecond=0) + SECOND
    while True:
        offset = _offset(begin, zone)
        due = next(CronSim(parts, begin - SECOND + offset)) - offset
        later = begin
        while later < due and _offset(later, zone) == offset:
            later = min(later + DAY, due)
        if _offset(later, zone) == offset:
            return due
        begin = _change(max(begin, later - DAY), later, zone)


def _moment(time: datetime, zone: ZoneInfo) -> datetime:
    """When the clocks of a zone first show a time, or pass over it."""
    first = time.replace(tzinfo=zone).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == time:
        return first
    # The clocks are put forward over it, between these two moments.
    return _change(time.replace(tzinfo=zone, fold=1).astimezone(UTC), first, zone)


def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """When the clocks of a zone are put forward or back, which is between two moments."""
    offset = _offset(before, zone)
    while after - before > SECOND:
        middle = before + (after - before) // 2 // SECOND * SECOND
        if _offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
