"""The form of a workflow or a hook: its parts as JSON, and what is wrong beside each step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from app import clock
from app.console.shell import forms
from app.console.shell.forms import Form
from app.errors import AppError, InvalidValues, Malformed, problem
from app.rest import json_input
from app.workflows import hooks, service
from app.workflows.language import step_headers
from app.workflows.models import HOOK, Workflow

LONGEST = {"name": 200, "description": 2000, "trigger": 10_000, "steps": 300_000, "condition": 2000}
LONGEST_SHOWN = 100_000
STEP = re.compile(r"(step|action)s\[([0-9]+)\]\.?(.*)")
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "workflow": {
        "trigger": {"type": "event", "event": "records.create", "collection": "posts"},
        "steps": [
            {"name": "pause", "type": "wait_delay", "duration": "5m"},
            {
                "name": "tell",
                "type": "action",
                "action_type": "send_email",
                "config": {
                    "to": "team@example.com",
                    "subject": "New: {{ trigger.record.title }}",
                    "body": "It was made five minutes ago.",
                },
            },
        ],
    },
    "hook": {
        "trigger": {"type": "schedule", "cron": "0 4 * * *"},
        "steps": [{"type": "send_webhook", "config": {"url": "https://hooks.example.com/nightly"}}],
    },
}


def empty(kind: str) -> Form:
    """The form for a new one, with an example to begin with."""
    example = EXAMPLES[kind]
    return Form({name: pretty(value) for name, value in example.items()} | {"name": ""})


def of_workflow(workflow: Workflow) -> Form:
    """The form with what one is now."""
    is_hook = workflow.kind == HOOK
    steps = hooks.actions_of(workflow) if is_hook else step_headers.masked(workflow.steps)
    return Form(
        {
            "name": workflow.name,
            "description": workflow.description or "",
            "trigger": pretty(service.shown_trigger(workflow)),
            "steps": pretty(steps),
            "condition": workflow.condition or "",
            "seen": clock.iso(workflow.updated_at),
        }
    )


def sent() -> Form:
    """The form as it was sent."""
    return forms.sent(*LONGEST, "seen")


def body(form: Form, kind: str) -> dict[str, Any]:
    """What the service is asked for. Raises InvalidValues."""
    texts = form.checked(("name", "trigger"), **LONGEST)
    trigger, wrong = _read(texts["trigger"], "trigger", dict)
    steps, more = _read(texts["steps"] or "[]", "steps", list)
    if wrong + more:
        raise InvalidValues(wrong + more)
    values = {"name": texts["name"], "description": texts["description"] or None}
    if kind == HOOK:
        condition = {"condition": texts["condition"] or None}
        return {**values, **condition, "trigger": trigger, "actions": steps}
    return {**values, "trigger": trigger, "steps": steps}


def given(form: Form) -> dict[str, Any]:
    """What an instance is begun with by hand. Raises InvalidValues."""
    form.checked(given=LONGEST["steps"])
    value, wrong = _read(form["given"] or "{}", "given", dict)
    if wrong:
        raise InvalidValues(wrong)
    return dict(value)


def refused(form: Form, error: AppError) -> Form:
    """Take in what an error says; places within the parts are told in words."""
    for one in error.extra.get("details") or ():
        place = str(one["field"])
        part = "trigger" if place.startswith("trigger") else "steps"
        inner = place.removeprefix("trigger.") if part == "trigger" else place
        message = one["message"]
        if place in form.values:
            form.errors.setdefault(place, []).append(message)
        else:
            form.errors.setdefault(part, []).append(f"{inner}: {message}")
    if not error.extra.get("details"):
        return form.refused(error)
    form.status = error.status
    return form


def faults(error: AppError, form: Form) -> list[dict[str, Any]]:
    """The steps as they were sent, each with what is wrong with it."""
    steps, _ = _read(form["steps"] or "[]", "steps", list)
    told: dict[int, list[str]] = {}
    noun = "step"
    for one in error.extra.get("details") or ():
        if found := STEP.fullmatch(str(one["field"])):
            noun, where = found[1], f"{found[3]}: " if found[3] else ""
            told.setdefault(int(found[2]), []).append(f"{where}{one['message']}")
    if not told:
        return []
    rows = []
    for index, step in enumerate(steps):
        about = step if isinstance(step, dict) else {}
        kind = about.get("action_type") or about.get("type") or ""
        name = about.get("name") or f"{noun} {index + 1}"
        rows.append({"name": str(name), "type": str(kind), "faults": told.get(index, [])})
    return rows


def pretty(value: Any) -> str:
    """A value as JSON to read and write."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _read(text: str, name: str, kind: type) -> tuple[Any, list[dict[str, Any]]]:
    try:
        value = json_input.loads(text.encode(errors="replace"))
    except Malformed as error:
        message = str(error.extra["detail"][0]["msg"])
        return kind(), [problem(name, "invalid_json", message)]
    if not isinstance(value, kind) or (kind is list and not _are_objects(value)):
        message = "This is a list of objects." if kind is list else "This is an object."
        return kind(), [problem(name, "invalid_json", message)]
    return value, []


def _are_objects(value: Any) -> bool:
    return all(isinstance(one, dict) for one in value)


def pretty_kept(value: Any) -> str:
    """A kept value as JSON to read, cut where it is very long."""
    text = pretty(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
