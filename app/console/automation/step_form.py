"""The step editor: the steps of a list as inputs, and back.

Each step has a row of inputs, named `<row>.<property>`. Steps of loops and branches are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from werkzeug.datastructures import MultiDict

from app.console.automation import workflow_form
from app.console.shell import json_texts
from app.errors import AppError, InvalidValues, problem
from app.http.languages import gettext, lazy_gettext
from app.types import JSONMapping, JSONObject
from app.workflows.language.checks import MAX_STEPS
from app.workflows.language.definition import ACTION, ACTIONS, CONDITION, EVENTS, PROPERTIES

MAX_LENGTH = 100_000  # characters of one input
FOLLOWING, END = "", "-end"  # no names of steps
FIELD = re.compile(r"steps\[([0-9]+)\](?:\.config)?(?:[.\[](\w+))?.*")
DO = re.compile(r"(up|down|remove)\.([0-9]{1,3})")
LABELS = {
    "create_record": lazy_gettext("Create a record"),
    "update_record": lazy_gettext("Update a record"),
    "delete_record": lazy_gettext("Delete a record"),
    "query_records": lazy_gettext("Query records"),
    "send_webhook": lazy_gettext("Send a request"),
    "send_email": lazy_gettext("Send a mail"),
    "condition": lazy_gettext("Condition"),
    "wait_delay": lazy_gettext("Wait for a time"),
    "wait_condition": lazy_gettext("Wait until a condition holds"),
    "wait_event": lazy_gettext("Wait for an event"),
    "loop": lazy_gettext("Loop over items"),
    "parallel": lazy_gettext("Run in parallel"),
}
PROPERTY_NAMES = {
    "name": lazy_gettext("Name"),
    "next": lazy_gettext("Next"),
    "expression": lazy_gettext("Expression"),
    "on_true": lazy_gettext("On true"),
    "on_false": lazy_gettext("On false"),
    "duration": lazy_gettext("Duration"),
    "poll_interval": lazy_gettext("Poll interval"),
    "timeout": lazy_gettext("Timeout"),
    "event": lazy_gettext("Event"),
    "collection": lazy_gettext("Collection"),
    "condition": lazy_gettext("Condition"),
    "items": lazy_gettext("Items"),
    "steps": lazy_gettext("Steps"),
    "branches": lazy_gettext("Branches"),
    "url": lazy_gettext("URL"),
    "method": lazy_gettext("Method"),
    "headers": lazy_gettext("Headers"),
    "body": lazy_gettext("Body"),
    "to": lazy_gettext("To"),
    "subject": lazy_gettext("Subject"),
    "data": lazy_gettext("Data"),
    "record_id": lazy_gettext("Record id"),
    "filter": lazy_gettext("Filter"),
    "sort": lazy_gettext("Sort"),
    "limit": lazy_gettext("Limit"),
}
TARGETS = ("next", "on_true", "on_false")
JSON_KINDS = {"data": dict, "headers": dict, "steps": list, "branches": list}
ANY_KIND = ("items", "limit", "to", "body")  # JSON or a text
EXPRESSIONS = ("expression", "condition", "filter")
LONG = (*JSON_KINDS, "items", "body", *EXPRESSIONS)
CHOICES: Mapping[str, Sequence[str]] = {"event": EVENTS}
NEW: Mapping[str, JSONMapping] = {
    "condition": {"expression": "true"},
    "wait_delay": {"duration": "5m"},
    "wait_event": {"event": EVENTS[0]},
    "loop": {"items": [], "steps": []},
    "parallel": {"branches": [[]]},
}


@dataclass
class Input:
    """One property of a step."""

    name: str
    label: str
    text: str
    required: bool
    errors: list[str] = field(default_factory=list)
    position: int | None = None
    """Where in the text the error is."""

    @property
    def editor(self) -> str | None:
        """The language of the editor, if it has one."""
        return "rule" if self.label in EXPRESSIONS else "json" if self.label in JSON_KINDS else None

    @property
    def title(self) -> str:
        """The property in words."""
        return PROPERTY_NAMES[self.label]

    @property
    def is_long(self) -> bool:
        """Whether it has an input of several lines."""
        return self.name.rpartition(".")[2] in LONG

    @property
    def options(self) -> Sequence[str]:
        """The values to choose from, if only some are possible."""
        return CHOICES.get(self.label, ())

    @property
    def is_target(self) -> bool:
        """Whether it names another step."""
        return self.label in TARGETS


@dataclass
class Row:
    """A step as inputs; `rest` has the properties without inputs, as JSON."""

    kind: str
    inputs: list[Input]
    rest: str
    errors: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What the step does."""
        return LABELS.get(self.kind, self.kind)

    @property
    def name(self) -> str:
        """The step's name."""
        return self.inputs[0].text


def rows(steps: Sequence[JSONMapping]) -> list[Row]:
    """The rows of steps."""
    return [_row(step, index) for index, step in enumerate(steps)]


def submitted(form: MultiDict[str, str]) -> list[JSONObject]:
    """The steps that a form has. Raises InvalidValues."""
    count = form.get("count", "")
    number = int(count) if re.fullmatch(r"[0-9]{1,3}", count, re.ASCII) else 0
    steps, problems = [], list[JSONObject]()
    for index in range(min(number, MAX_STEPS + 1)):
        step, found = _step(form, index)
        steps.append(step)
        problems += found
    if problems:
        raise InvalidValues(problems)
    return steps


def submitted_rows(form: MultiDict[str, str]) -> list[Row]:
    """The rows of a form as they were filled in."""
    count = form.get("count", "")
    number = int(count) if re.fullmatch(r"[0-9]{1,3}", count, re.ASCII) else 0
    return [
        Row(
            kind,
            [
                Input(f"{index}.{name}", name, _text(form, f"{index}.{name}"), required)
                for name, required in _properties(kind)
            ],
            _text(form, f"{index}.rest"),
        )
        for index in range(min(number, MAX_STEPS + 1))
        if (kind := _kind(form, index))
    ]


def rearranged(found: Sequence[Row], do: str, new_kind: str) -> list[Row] | None:
    """The rows after a button was pressed; None if it is none that changes their order."""
    result = list(found)
    if do == "add" and new_kind in LABELS and len(result) < MAX_STEPS:
        names = {row.name for row in result}
        name = next(f"step_{n}" for n in range(1, MAX_STEPS + 2) if f"step_{n}" not in names)
        base = (
            {"type": ACTION, "action_type": new_kind} if new_kind in ACTIONS else {"type": new_kind}
        )
        result.append(_row({"name": name, **base, **NEW.get(new_kind, {})}, len(result)))
    elif match := DO.fullmatch(do):
        index = int(match[2])
        other = index + {"up": -1, "down": 1, "remove": 0}[match[1]]
        if index >= len(result) or not 0 <= other < len(result):
            return result
        if match[1] == "remove":
            del result[index]
        else:
            result[index], result[other] = result[other], result[index]
    elif do != "add":
        return None
    for index, row in enumerate(result):
        for one in row.inputs:
            one.name = f"{index}.{one.label}"
    return result


def with_errors(found: list[Row], error: AppError) -> list[Row]:
    """The rows with the messages of an error beside their inputs."""
    for detail in error.extra.get("details") or ():
        match = FIELD.fullmatch(str(detail["field"]))
        row = found[int(match[1])] if match and int(match[1]) < len(found) else None
        if row is None or match is None:
            continue
        place = next((one for one in row.inputs if one.label == match[2]), None)
        (place.errors if place else row.errors).append(f"{detail['field']}: {detail['message']}")
        if place and str(detail["field"]).endswith(f".{place.label}"):  # and not within its JSON
            place.position = detail.get("position")
    return found


def names(found: Sequence[Row]) -> JSONObject:
    """The names that expressions of the steps may use, as the editor completes them."""
    steps = {row.name: {"type": str(row.label)} for row in found if row.name}
    return {"trigger": {}, "steps": {"parts": steps}, "now": {}, "item": {}, "index": {}}


def _row(step: JSONMapping, index: int) -> Row:
    kind = step.get("action_type") or step["type"]
    values = {**step, **(step.get("config") or {})}
    names = dict(_properties(kind))
    inputs = [
        Input(f"{index}.{name}", name, _shown(kind, name, values), required)
        for name, required in names.items()
    ]
    known = {*names, "type", "action_type", "config"}
    rest = {name: value for name, value in step.items() if name not in known}
    return Row(kind, inputs, orjson.dumps(rest).decode())


def _properties(kind: str) -> Iterator[tuple[str, bool]]:
    yield "name", True
    for name in ACTIONS[kind] if kind in ACTIONS else PROPERTIES[kind]:
        yield name.lstrip("*"), name.startswith("*")
    if kind != CONDITION:
        yield "next", False


def _shown(kind: str, name: str, values: JSONMapping) -> str:
    value = values.get(name)
    if name == "next":
        return FOLLOWING if name not in values else value or END
    if value is None:
        return ""
    is_text = isinstance(value, str) and not (_is_any(kind, name) and _is_json(value))
    return str(value) if is_text else workflow_form.pretty(value)


def _is_any(kind: str, name: str) -> bool:
    return name in ANY_KIND and (kind, name) != ("send_email", "body")


def _is_json(text: str) -> bool:
    return json_texts.fault(text) is None


def _step(form: MultiDict[str, str], index: int) -> tuple[JSONObject, list[JSONObject]]:
    kind, problems = _kind(form, index), list[JSONObject]()
    values: JSONObject = {}
    for name, _ in _properties(kind) if kind else ():
        text, place = _text(form, f"{index}.{name}"), f"steps[{index}].{name}"
        value, found = _value(kind, name, text, place)
        problems += found
        if name == "next" and text == END:
            values["next"] = None
        elif value is not None:
            values[name] = value
    rest, _ = workflow_form.parse_json(_text(form, f"{index}.rest") or "{}", "rest", dict)
    if kind not in ACTIONS:
        return {**rest, **values, "type": kind}, problems
    outside = {name: values.pop(name) for name in ("name", "next") if name in values}
    step = {**rest, **outside, "type": ACTION, "action_type": kind, "config": values}
    return step, problems


def _value(kind: str, name: str, text: str, place: str) -> tuple[Any, list[JSONObject]]:
    if len(text) > MAX_LENGTH:
        message = gettext("At most %(limit)s characters.", limit=MAX_LENGTH)
        return None, [problem(place, "too_long", message)]
    if not text:
        return None, []
    is_template = text.startswith("{{")
    if name in JSON_KINDS and not is_template:
        return workflow_form.parse_json(text, place, JSON_KINDS[name], of_objects=False)
    # A body may be any text; elsewhere, what begins like JSON is meant as JSON.
    is_meant = name != "body" and text[0] in '[{"' and not is_template
    if _is_any(kind, name) and (is_meant or _is_json(text)):
        return workflow_form.parse_json(text, place, object, of_objects=False)
    return text, []


def _kind(form: MultiDict[str, str], index: int) -> str:
    kind = form.get(f"{index}.type", "")
    return kind if kind in LABELS else ""


def _text(form: MultiDict[str, str], name: str) -> str:
    return form.get(name, "").replace("\0", "").replace("\r\n", "\n").strip()
