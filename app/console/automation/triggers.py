"""Triggers of workflows: in words, as inputs of a form, and with sample data to run by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from zoneinfo import ZoneInfo

from app import clock
from app.auth.principal import Principal
from app.collections import definitions
from app.console.automation.webhook_form import EVENTS
from app.console.shell.forms import Form
from app.ids import new_id
from app.operator.types import OF_WORKFLOWS, EventType
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext, ngettext
from app.workflows.language import missing
from app.workflows.language.cron import expanded, following
from app.workflows.language.definition import Written, lists_in
from app.workflows.language.missing import Path
from app.workflows.models import HOOK, Trigger, Workflow

MAX_NAMES = 200  # that a sample is made of
MAX_TIMES = 3  # of a schedule that are shown
JSON = "json"
TYPES = {
    Trigger.EVENT: lazy_gettext("A record, user or group changes"),
    Trigger.SCHEDULE: lazy_gettext("On a schedule"),
    Trigger.MANUAL: lazy_gettext("By hand only"),
    Trigger.WEBHOOK: lazy_gettext("A request of another service"),
    JSON: lazy_gettext("Write the trigger as JSON"),
}
ACCOUNT_EVENTS = {
    EventType.USER_CREATED: lazy_gettext("User created"),
    EventType.USER_JOINED: lazy_gettext("User joined"),
    EventType.USER_UPDATED: lazy_gettext("User updated"),
    EventType.USER_VERIFIED: lazy_gettext("Address of a user verified"),
    EventType.USER_ROLE_CHANGED: lazy_gettext("Role of a user changed"),
    EventType.USER_DEACTIVATED: lazy_gettext("User deactivated"),
    EventType.USER_DELETED: lazy_gettext("User deleted"),
    EventType.MEMBER_ADDED: lazy_gettext("Member added to a group"),
    EventType.MEMBER_REMOVED: lazy_gettext("Member removed from a group"),
    EventType.INVITATION_CREATED: lazy_gettext("Invitation created"),
    EventType.INVITATION_ACCEPTED: lazy_gettext("Invitation accepted"),
    EventType.INVITATION_REVOKED: lazy_gettext("Invitation revoked"),
}
EVENT_NAMES = {
    **{f"records.{event['id']}": event["name"] for event in EVENTS},
    **{type.value: name for type, name in ACCOUNT_EVENTS.items()},
}
INPUTS_BY_TYPE: dict[str, tuple[str, ...]] = {
    Trigger.EVENT: ("event", "collection", "condition"),
    Trigger.SCHEDULE: ("cron", "timezone"),
}
INPUT_NAMES = (
    "trigger_type",
    *(f"trigger_{name}" for names in INPUTS_BY_TYPE.values() for name in names),
)

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
EVENT_PHRASES = {
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
        words, zone = of_schedule(trigger["cron"]), trigger.get("timezone")
        return f"{words} ({zone})" if zone else words
    if trigger["type"] == Trigger.EVENT and trigger["event"] in EVENT_PHRASES:
        collection = trigger.get("collection") or gettext("any collection")
        return EVENT_PHRASES[trigger["event"]] % {"collection": collection}
    if trigger["type"] == Trigger.EVENT and trigger["event"] in EVENT_NAMES:
        return str(EVENT_NAMES[trigger["event"]])
    return str(STARTED_BY[trigger["type"]])


def phrase(trigger: JSONMapping) -> str:
    """The trigger of a workflow in words that follow its name."""
    words = describe(trigger)
    is_bare = words == str(STARTED_BY[trigger["type"]])
    return str(PHRASES[trigger["type"]]) if is_bare else words


def of_schedule(cron: str) -> str:
    """A cron expression in words if it has a common form, as it is otherwise."""
    minute, hour, day, month, weekday = expanded(cron).split()
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


def next_times(trigger: JSONMapping) -> list[str]:
    """The next times of a schedule as its clocks show them; none of other triggers."""
    found, moment = list[str](), clock.now()
    if trigger["type"] != Trigger.SCHEDULE:
        return found
    zone = trigger.get("timezone") or "UTC"
    with suppress(ValueError):  # an earlier version accepted it
        for _ in range(MAX_TIMES):
            moment = following(trigger["cron"], moment, zone)
            found.append(f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}")
    return found


def types_of(kind: str) -> dict[str, str]:
    """The types of triggers of a workflow or a hook, by value."""
    return {
        name: text for name, text in TYPES.items() if not (kind == HOOK and name == Trigger.WEBHOOK)
    }


def input_values(trigger: JSONMapping) -> dict[str, str]:
    shown = {f"trigger_{name}": value for name, value in trigger.items()}
    return {name: str(shown.get(name, "")) for name in INPUT_NAMES}


def parse_trigger(form: Form) -> JSONObject | None:
    """The trigger of the inputs; None if it is sent as JSON."""
    kind = form["trigger_type"]
    if kind in ("", JSON):
        return None
    filled = {name: form[f"trigger_{name}"] for name in INPUTS_BY_TYPE.get(kind, ())}
    return {"type": kind} | {name: value for name, value in filled.items() if value}


def input_of(form: Form, property: str) -> str:
    """The input that an error of a property of the trigger belongs to."""
    name = f"trigger_{property}"
    if form["trigger_type"] in ("", JSON):
        return "trigger"
    return name if name in INPUT_NAMES else "trigger_type"


def sample(workflow: Workflow, by: Principal) -> JSONObject:
    """Sample data of `trigger` for the steps, as far as the caller may view it."""
    trigger = workflow.trigger
    if trigger["type"] == Trigger.EVENT:
        return _event_sample(trigger, by)
    if trigger["type"] == Trigger.SCHEDULE:
        zone = {"timezone": trigger["timezone"]} if trigger.get("timezone") else {}
        return {"scheduled_for": clock.iso(clock.now()), "cron": trigger["cron"], **zone}
    found: JSONObject = {}
    for _, path in zip(range(MAX_NAMES), _trigger_paths(workflow.steps), strict=False):
        _put(found, path)
    return found


def _event_sample(trigger: Written, by: Principal) -> JSONObject:
    collection, event = trigger.get("collection"), trigger["event"]
    if event in OF_WORKFLOWS:
        sample = {"event": event, "account_id": by.account_id, "at": clock.iso(clock.now())}
        return sample | {"actor": {"kind": "user", "id": by.user_id, "name": None}, "data": {}}
    visible = missing.visible_fields(collection, by) if collection else None
    columns = definitions.get_current(collection).columns if collection and visible else {}
    values = {name: field.sample() for name, field in columns.items() if name in (visible or ())}
    values = values or {"id": new_id()}
    found: JSONObject = {"event": event, "collection": collection}
    found["record"] = None if event == "records.delete" else values
    return found if event == "records.create" else {**found, "previous": values}


def _trigger_paths(steps: Sequence[Written]) -> Iterator[Path]:
    for step in steps:
        for _, path in missing.in_step(step, ""):
            if path[0] == "trigger" and len(path) > 1:
                yield path[1:]
        for inner in lists_in(step):
            yield from _trigger_paths(inner)


def _put(found: JSONObject, path: Path) -> None:
    for name in path[:-1]:
        inner = found.setdefault(name, {})
        if not isinstance(inner, dict):  # also used as a value itself
            inner = found[name] = {}
        found = inner
    found.setdefault(path[-1], "")
