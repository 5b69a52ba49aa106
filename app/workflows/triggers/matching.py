"""Validates triggers."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import problem
from app.types import JSONMapping, JSONObject
from app.workflows.language import checks, cron
from app.workflows.language.definition import event_name
from app.workflows.language.expressions import AvailableNames
from app.workflows.models import TRIGGERS, Trigger

PROPERTIES: Mapping[str, tuple[str, ...]] = {
    Trigger.EVENT: ("event", "collection", "condition"),
    Trigger.SCHEDULE: ("cron", "timezone"),
    Trigger.MANUAL: (),
    Trigger.WEBHOOK: ("token",),
}
Problem = JSONObject


def normal(trigger: JSONMapping) -> JSONObject:
    """A trigger with the properties of its `config` and the full event name."""
    config = trigger.get("config")
    rest = {name: value for name, value in trigger.items() if name != "config"}
    result = {**config, **rest} if isinstance(config, dict) else rest
    result = {name: value for name, value in result.items() if value is not None}
    if event_name(result.get("event")):
        result["event"] = event_name(result["event"])
    if isinstance(result.get("cron"), str):
        result["cron"] = " ".join(result["cron"].split())
    return result


def problems(trigger: JSONMapping, allowed: tuple[str, ...] = TRIGGERS) -> list[Problem]:
    """The problems of a trigger."""
    kind = trigger.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        message = f"Must be one of: {', '.join(allowed)}."
        return [problem("trigger.type", "type_invalid", message)]
    allowed_names = ("type", *PROPERTIES[kind])
    unknown = [name for name in trigger if name not in allowed_names]
    problems_ = [
        problem(f"trigger.{name[:63]}", "unknown_field", f"Unknown property {name[:63]}.")
        for name in unknown
    ]
    if kind == Trigger.EVENT:
        problems_ += checks.event_problems(trigger, "trigger", AvailableNames())
    elif kind == Trigger.SCHEDULE:
        if wrong := cron.problem(trigger.get("cron")):
            problems_.append(problem("trigger.cron", "cron_invalid", wrong))
        zone = trigger.get("timezone")
        if zone is not None and (wrong := cron.timezone_problem(zone)):
            problems_.append(problem("trigger.timezone", "invalid_option", wrong))
    return problems_
