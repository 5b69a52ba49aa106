"""Due times as cron writes them: minute, hour, day of month, month, day of week, in UTC.

croniter tells when they are, but makes something of what is written wrongly, too: of `*/61` the
hour's first minute, of `5-1` a range over its end. So only what has one meaning is let through; and
ranges are told to it in full, as it takes `3-3` for every day, and leaves Sunday out of `5/1`; and
of `*/1` it is told as `*`, or the first of a month would be any day with `0 0 1 * */1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from croniter import CroniterBadDateError, CroniterError, croniter

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")  # Sunday is 0 and 7
ITEM = re.compile(r"(?:\*|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,4}))?")
LONGEST = 200


@dataclass(frozen=True)
class Field:
    """One of the five: its values, and further forms that croniter knows."""

    name: str
    first: int
    last: int
    size: int
    names: tuple[str, ...] = ()
    special: str = "(?!)"

    def problem(self, text: str) -> str | None:
        """What is wrong with it, if anything."""
        problems = (self._wrong(item) for item in text.lower().split(","))
        return next((wrong for wrong in problems if wrong), None)

    def _wrong(self, item: str) -> str | None:
        if re.fullmatch(self.special, item):
            return None
        found = ITEM.fullmatch(item)
        low, high = self._ends(*found.groups()) if found else (None, None)
        if found is None or low is None or high is None:
            return f"{item!r} is no {self.name}, which goes from {self.first} to {self.last}."
        if low > high:
            return f"The range {item!r} of the {self.name} runs backwards."
        if found[3] and not 1 <= int(found[3]) <= min(high - low + 1, self.size):
            return f"The step of {item!r} is 0, or larger than what it goes over."
        return None

    def in_full(self, text: str) -> str:
        """The same with both ends of each range as numbers, and a range of one value as that."""
        return ",".join(self._in_full(item) for item in text.lower().split(","))

    def _in_full(self, item: str) -> str:
        found = ITEM.fullmatch(item)
        if found and not found[1] and found[3] and int(found[3]) == 1:
            return "*"  # which alone says that a day does not matter, where the other one does
        if found is None or not found[1] or not (found[2] or found[3]):
            return item
        low, high = self._ends(*found.groups())
        if low is None or high is None:
            return item
        return str(low) if low == high else f"{low}-{high}/{found[3] or 1}"

    def _ends(self, low: str | None, high: str | None, step: str | None) -> list[int | None]:
        if low is None:
            return [self.first, self.last]
        begin = self._number(low, 0)
        if high is None:
            return [begin, self.last if step else begin]
        return [begin, begin if high == low else self._number(high, -1)]

    def _number(self, text: str, which: int) -> int | None:
        if text.isdecimal():
            return int(text) if self.first <= int(text) <= self.last else None
        named = [n for n, name in enumerate(self.names, self.first) if name == text]
        return named[which] if named else None


FIELDS = (
    Field("minute", 0, 59, 60),
    Field("hour", 0, 23, 24),
    Field("day of month", 1, 31, 31, special=r"\?|l|([1-9]|[12][0-9]|3[01])w"),
    Field("month", 1, 12, 12, MONTHS),
    Field("day of week", 0, 7, 7, DAYS, special=r"\?|l[0-7]|([0-7]|[a-z]{3})#[1-5]"),
)


def problem(text: object) -> str | None:
    """Why a text names no due times, if so: whatever is wrong with any of its fields."""
    parts = text.split() if isinstance(text, str) and len(text) <= LONGEST else []
    if len(parts) != len(FIELDS):
        return "Five fields are needed: minute, hour, day of month, month, day of week."
    wrong = [field.problem(part) for field, part in zip(FIELDS, parts, strict=True)]
    return " ".join(filter(None, wrong)) or _never(" ".join(parts))


def _never(text: str) -> str | None:
    try:
        following(text, datetime(2026, 1, 1))  # noqa: DTZ001 - any moment will do
    except (CroniterBadDateError, OverflowError):
        return "This names no time that ever comes."
    except (CroniterError, ValueError, KeyError):
        return "Forms such as L5, 5#2, 15W and ? do not stand in a list with plain numbers."
    return None


def following(text: str, moment: datetime) -> datetime:
    """The first due time after a moment. Raises ValueError, which CroniterError is, KeyError."""
    parts = [field.in_full(part) for field, part in zip(FIELDS, text.split(), strict=True)]
    minute, hour, day, month, weekday = parts
    is_any = any({"*", "?"}.intersection(days.split(",")) for days in (day, weekday))
    if is_any or not re.search("[l#w]", day + weekday):
        return _next(parts, moment)
    # Of two day fields either is enough; beside such a form croniter forgets the other.
    each = ([minute, hour, day, month, "*"], [minute, hour, "*", month, weekday])
    return min(found for one in each if (found := _next_if_any(one, moment)))


def _next(parts: list[str], moment: datetime) -> datetime:
    found: datetime = croniter(" ".join(parts), moment).get_next(datetime)
    return found


def _next_if_any(parts: list[str], moment: datetime) -> datetime | None:
    try:
        return _next(parts, moment)
    except CroniterBadDateError:
        return None
