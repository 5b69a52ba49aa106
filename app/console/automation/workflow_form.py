"""The form of a workflow: JSON for its parts, and errors by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app import clock
from app.console.automation import triggers
from app.console.shell import checks, forms
from app.console.shell.forms import Form
from app.errors import AppError, InvalidValues, Malformed, problem
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.web.languages import gettext
from app.workflows import hooks, service
from app.workflows.language import step_headers
from app.workflows.models import HOOK, Trigger, Workflow

MAX_LENGTHS = {
    "name": 200,
    "description": 2000,
    "trigger": 10_000,
    "steps": 300_000,
    "condition": 2000,
}
MAX_SHOWN_LENGTH = 100_000
STEP_FIELD = re.compile(r"(step|action)s\[([0-9]+)\]\.?(.*)")
EXAMPLES: Mapping[str, Sequence[JSONMapping]] = {
    "workflow": [
        {"name": "pause", "type": "wait_delay", "duration": "5m"},
        {
            "name": "tell",
            "type": "action",
            "action_type": "send_email",
            "config": {
                "to": "team@example.com",
                "subject": "New: {{ trigger.record.title }}",
                "body": "The post was created five minutes ago.",
            },
        },
    ],
    "hook": [{"type": "send_webhook", "config": {"url": "https://hooks.example.com/nightly"}}],
}


@dataclass
class WorkflowForm(Form):
    """A form of texts, some of them JSON, and the steps that have errors."""

    is_submitted: bool = False
    """Whether its steps are those that errors are about, and not the stored ones."""
    step_errors: Sequence[JSONMapping] = ()
    """The submitted steps, each with its error messages; none if no step has any."""

    def with_error(self, error: AppError) -> WorkflowForm:
        """The form with the messages of an error; errors within JSON name their path."""
        details = error.extra.get("details")
        self.step_errors = self._step_errors(details or ()) if self.is_submitted else ()
        if not details:
            super().with_error(error)
            return self
        self.note_positions(error)
        for detail in details:
            field, message = str(detail["field"]), detail["message"]
            if field not in self.values:
                path = field.removeprefix("trigger.")
                is_trigger = field.startswith("trigger")
                field = triggers.input_of(self, path) if is_trigger else "steps"
                message = message if field == f"trigger_{path}" else f"{path}: {message}"
            self.errors.setdefault(field, []).append(message)
        self.status = error.status
        return self

    def _step_errors(self, details: Sequence[JSONMapping]) -> list[JSONMapping]:
        messages: dict[int, list[str]] = {}
        noun = "step"
        for detail in details:
            if match := STEP_FIELD.fullmatch(str(detail["field"])):
                noun, prefix = match[1], f"{match[3]}: " if match[3] else ""
                messages.setdefault(int(match[2]), []).append(f"{prefix}{detail['message']}")
        if not messages:
            return []
        steps, _ = parse_json(self["steps"] or "[]", "steps", list)
        rows: list[JSONMapping] = []
        for index, step in enumerate(steps):
            spec = step if isinstance(step, dict) else {}
            kind = spec.get("action_type") or spec.get("type") or ""
            if noun == "action":
                numbered = gettext("action %(number)s", number=index + 1)
            else:
                numbered = gettext("step %(number)s", number=index + 1)
            name = str(spec.get("name") or numbered)
            rows.append({"name": name, "type": str(kind), "messages": messages.get(index, [])})
        return rows


def blank() -> WorkflowForm:
    """The form for a new one: nothing starts it, and it does nothing, until somebody says so."""
    values = {"name": "", "trigger_type": Trigger.MANUAL, "trigger": "{}", "steps": "[]"}
    return WorkflowForm(values)


def from_workflow(workflow: Workflow) -> WorkflowForm:
    is_hook = workflow.kind == HOOK
    steps = hooks.list_actions(workflow) if is_hook else step_headers.masked(workflow.steps)
    return WorkflowForm(
        {
            "name": workflow.name,
            "description": workflow.description or "",
            "trigger": pretty(service.trigger_with_token(workflow)),
            **triggers.input_values(workflow.trigger),
            "steps": pretty(steps),
            "condition": workflow.condition or "",
            "seen": clock.iso(workflow.updated_at),
        }
    )


def submitted() -> WorkflowForm:
    form = forms.submitted(*MAX_LENGTHS, *triggers.INPUT_NAMES, "seen", kind=WorkflowForm)
    form.is_submitted = True
    if (trigger := triggers.parse_trigger(form)) is not None:
        form.values["trigger"] = pretty(trigger)
    return form


def body(form: Form, kind: str) -> JSONObject:
    """The request body that the form submits. Raises InvalidValues."""
    texts = form.validated(("name", "trigger"), **MAX_LENGTHS)
    trigger, problems = parse_json(texts["trigger"], "trigger", dict)
    steps, step_problems = parse_json(texts["steps"] or "[]", "steps", list)
    if problems + step_problems:
        raise InvalidValues(problems + step_problems)
    values = {"name": texts["name"], "description": texts["description"] or None}
    if kind == HOOK:
        condition = {"condition": texts["condition"] or None}
        return {**values, **condition, "trigger": trigger, "actions": steps}
    return {**values, "trigger": trigger, "steps": steps}


def trigger_data(form: Form) -> JSONObject:
    """The trigger data for a manual start. Raises InvalidValues."""
    form.validated(given=MAX_LENGTHS["steps"])
    value, problems = parse_json(form["given"] or "{}", "given", dict)
    if problems:
        raise InvalidValues(problems)
    return dict(value)


def pretty(value: object) -> str:
    """A value as indented JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def parse_json(
    text: str, name: str, kind: type, *, of_objects: bool = True
) -> tuple[Any, list[JSONObject]]:
    try:
        value = serialization.parse(text.encode(errors="replace"))
    except Malformed as error:
        fault = checks.fault(text)
        message = fault.message if fault else str(error.extra["detail"][0]["msg"])
        return kind(), [problem(name, "invalid_json", message, **checks.place(text))]
    if not isinstance(value, kind) or (kind is list and of_objects and not _are_objects(value)):
        message = (
            gettext("Enter a list of objects.") if kind is list else gettext("Enter an object.")
        )
        return kind(), [problem(name, "invalid_json", message)]
    return value, []


def _are_objects(value: Any) -> bool:
    return all(isinstance(item, dict) for item in value)


def pretty_shortened(value: object) -> str:
    """A stored value as indented JSON, cut if very long."""
    text = pretty(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"
