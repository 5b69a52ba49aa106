"""Cron expressions: minute, hour, day of month, month, day of week, in UTC.

cronsim parses and evaluates them; it follows Debian's cron, which differs from what we document:
of two restricted day fields either is enough, also where one is a step such as `*/10`; `fri-sun`
is a range, `5-5/1` one value, and a step fits its range (cronsim takes `*/61`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from cronsim import CronSim, CronSimError

LONGEST = 200
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
    parts = text.split() if isinstance(text, str) and len(text) <= LONGEST else []
    if len(parts) != len(FIELDS):
        return "Five fields are needed: minute, hour, day of month, month, day of week."
    wrong = [field.problem(part) for field, part in zip(FIELDS, parts, strict=True)]
    if any(wrong):
        return " ".join(filter(None, wrong))
    try:
        following(" ".join(parts), EPOCH)
    except ValueError:
        return "This schedule never comes due."
    return None


def following(text: str, moment: datetime) -> datetime:
    """Return the first due time after a moment. Raises ValueError."""
    parts = [field.normal(part) for field, part in zip(FIELDS, text.split(), strict=True)]
    try:
        return next(CronSim(" ".join(parts), moment.astimezone(UTC)))
    except (CronSimError, StopIteration) as error:
        raise ValueError(f"The schedule {text!r} names no due time.") from error
