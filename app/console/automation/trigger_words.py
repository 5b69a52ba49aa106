"""What starts a workflow, in words."""

from __future__ import annotations

import re

from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext, ngettext
from app.workflows.models import Trigger

STARTED_BY = {
    Trigger.EVENT: lazy_gettext("Event"),
    Trigger.SCHEDULE: lazy_gettext("Schedule"),
    Trigger.MANUAL: lazy_gettext("By hand"),
    Trigger.WEBHOOK: lazy_gettext("Request"),
}
PHRASES = {
    Trigger.EVENT: lazy_gettext("Started by an event"),
    Trigger.MANUAL: lazy_gettext("Started by hand"),
    Trigger.WEBHOOK: lazy_gettext("Started by a request"),
}
EVENTS = {
    "records.create": lazy_gettext("Record of %(collection)s created"),
    "records.update": lazy_gettext("Record of %(collection)s updated"),
    "records.delete": lazy_gettext("Record of %(collection)s deleted"),
}
ON_WEEKDAYS = (
    lazy_gettext("Every Sunday at %(time)s"),
    lazy_gettext("Every Monday at %(time)s"),
    lazy_gettext("Every Tuesday at %(time)s"),
    lazy_gettext("Every Wednesday at %(time)s"),
    lazy_gettext("Every Thursday at %(time)s"),
    lazy_gettext("Every Friday at %(time)s"),
    lazy_gettext("Every Saturday at %(time)s"),
)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
EVERY_FEW_MINUTES = re.compile(r"\*/(\d{1,2})")


def describe(trigger: JSONMapping) -> str:
    if trigger["type"] == Trigger.SCHEDULE:
        return of_schedule(trigger["cron"])
    if trigger["type"] == Trigger.EVENT and trigger["event"] in EVENTS:
        collection = trigger.get("collection") or gettext("any collection")
        return EVENTS[trigger["event"]] % {"collection": collection}
    return str(STARTED_BY[trigger["type"]])


def phrase(trigger: JSONMapping) -> str:
    """What starts a workflow, where its name alone stands before."""
    words = describe(trigger)
    is_bare = words == str(STARTED_BY[trigger["type"]])
    return str(PHRASES[trigger["type"]]) if is_bare else words


def of_schedule(cron: str) -> str:
    """A cron expression in words if it has a common form, as it is otherwise."""
    minute, hour, day, month, weekday = cron.split()
    if month != "*":
        return cron
    if (hour, day, weekday) == ("*", "*", "*"):
        return _within_hours(minute) or cron
    if not (minute.isdecimal() and hour.isdecimal()):
        return cron
    return _on_days(day, weekday.lower(), f"{int(hour):02}:{int(minute):02}") or cron


def _within_hours(minute: str) -> str | None:
    if minute in ("*", "*/1"):
        return gettext("Every minute")
    if minute.isdecimal():
        return gettext("Every hour at minute %(number)s", number=int(minute))
    # Others have a shorter last interval.
    if (every := EVERY_FEW_MINUTES.fullmatch(minute)) and 60 % int(every[1]) == 0:
        return ngettext("Every %(num)s minute", "Every %(num)s minutes", int(every[1]))
    return None


def _on_days(day: str, weekday: str, time: str) -> str | None:
    if weekday == "*":
        if day == "*":
            return gettext("Every day at %(time)s", time=time)
        if day.isdecimal():
            return gettext("On day %(day)s of each month at %(time)s", day=int(day), time=time)
        return None
    if day != "*":
        return None
    if weekday in ("1-5", "mon-fri"):
        return gettext("Monday to Friday at %(time)s", time=time)
    if weekday in DAYS:
        return ON_WEEKDAYS[DAYS.index(weekday)] % {"time": time}
    return ON_WEEKDAYS[int(weekday) % 7] % {"time": time} if weekday.isdecimal() else None
