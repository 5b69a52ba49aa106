"""The inputs of a trigger, which stand for its JSON."""

from __future__ import annotations

from app.console.automation.webhook_form import EVENTS
from app.console.shell.forms import Form
from app.types import JSONMapping, JSONObject
from app.web.languages import lazy_gettext
from app.workflows.models import HOOK, Trigger

JSON = "json"
TYPES = {
    Trigger.EVENT: lazy_gettext("A record changes"),
    Trigger.SCHEDULE: lazy_gettext("On a schedule"),
    Trigger.MANUAL: lazy_gettext("By hand only"),
    Trigger.WEBHOOK: lazy_gettext("A request of another service"),
    JSON: lazy_gettext("Write the trigger as JSON"),
}
EVENT_NAMES = {f"records.{event['id']}": event["name"] for event in EVENTS}
PROPERTIES: dict[str, tuple[str, ...]] = {
    Trigger.EVENT: ("event", "collection", "condition"),
    Trigger.SCHEDULE: ("cron",),
}
INPUTS = ("trigger_type", *(f"trigger_{name}" for names in PROPERTIES.values() for name in names))


def types(kind: str) -> dict[str, str]:
    """The types of triggers of a workflow or a hook, by value."""
    return {
        name: text for name, text in TYPES.items() if not (kind == HOOK and name == Trigger.WEBHOOK)
    }


def values(trigger: JSONMapping) -> dict[str, str]:
    shown = {f"trigger_{name}": value for name, value in trigger.items()}
    return {name: str(shown.get(name, "")) for name in INPUTS}


def trigger(form: Form) -> JSONObject | None:
    """The trigger of the inputs; None if it is sent as JSON."""
    kind = form["trigger_type"]
    if kind in ("", JSON):
        return None
    filled = {name: form[f"trigger_{name}"] for name in PROPERTIES.get(kind, ())}
    return {"type": kind} | {name: value for name, value in filled.items() if value}


def input_of(form: Form, property: str) -> str:
    """The input that an error of a property of the trigger belongs to."""
    name = f"trigger_{property}"
    if form["trigger_type"] in ("", JSON):
        return "trigger"
    return name if name in INPUTS else "trigger_type"
