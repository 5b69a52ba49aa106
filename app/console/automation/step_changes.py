"""Parses the rows of the step editor, rearranges them, and shows errors beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.console.automation import step_data, step_form, workflow_form
from app.console.automation.step_form import DATA, END, JSON_KINDS, Input, Row, StepList
from app.console.shell import forms
from app.errors import AppError, InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext
from app.workflows.language.checks import MAX_BRANCHES, MAX_STEPS
from app.workflows.language.definition import ACTION, ACTIONS, EVENTS, LOOPS, PARALLEL

MAX_LENGTH = 100_000  # characters of one input
BUTTON = re.compile(r"(add|up|down|remove)(?:\.([a-z0-9.]{1,100}))?")
NEW: Mapping[str, JSONMapping] = {
    "condition": {"expression": "true"},
    "wait_delay": {"duration": "5m"},
    "wait_event": {"event": EVENTS[0]},
    "loop": {"items": [], "steps": []},
    "for_each": {"steps": []},
    "parallel": {"branches": [[]]},
}
Places = dict[str, "Input | Row | StepList"]


@dataclass(frozen=True)
class Button:
    """A pressed button that adds, moves or removes a row: what it does, and with which one.

    `path` is that of the row, or of the list that gets a new one.
    """

    verb: str
    path: str


@dataclass(frozen=True)
class Fault:
    """An error of the summary: the element that it leads to, its place in words, and the text."""

    target: str
    place: str
    message: str


def to_steps(steps: StepList) -> list[JSONObject]:
    """The steps, or actions, that the rows describe. Raises InvalidValues."""
    problems = list[JSONObject]()
    result = _steps(steps, "actions" if steps.of_hook else "steps", problems)
    if problems:
        raise InvalidValues(problems)
    return result


def parse_button(do: str) -> Button | None:
    """The pressed button of a row or list; None if it is another one of the form."""
    match = BUTTON.fullmatch(do)
    return Button(match[1], match[2] or "") if match else None


def rearrange(steps: StepList, button: Button) -> None:
    """Add, move or remove a row, or a branch of a row.

    The type of a new row, and the number of the row that it is added before, are inputs beside the
    button; without a number it is the last one.
    """
    lists = {one.path: one for one in steps.walk()}
    if button.verb == "add" and button.path in lists:
        target = lists[button.path]
        inputs = (forms.text(f"{target.prefix}{name}") for name in ("kind", "before"))
        _add(steps, target, *inputs)
    elif button.verb == "add":
        _add_branch(steps, button.path)
    else:
        parent, _, last = button.path.rpartition(".")
        if last.isdecimal():
            _move_or_remove(_siblings(steps, parent), int(last), button.verb)
    steps.numbered()


def with_errors(steps: StepList, error: AppError) -> list[Fault]:
    """Put the messages of an error beside their inputs; returns them all, for a summary."""
    places, faults = _places(steps), []
    for detail in error.extra.get("details") or ():
        path, inner = _located(places, str(detail["field"]))
        is_missing = detail.get("code") == "required" and not inner
        message = gettext("Required.") if is_missing else forms.error_text(detail["message"])
        place = places[path]
        # The path of what is wrong within the JSON of an input; else the input tells the place.
        place.errors.append(f"{inner}: {message}" if inner else message)
        if isinstance(place, Input) and not inner:
            place.position = detail.get("position")
        faults.append(Fault(f"i-{path}", _words(places, path), place.errors[-1]))
    return faults


def warnings(steps: StepList, found: Iterable[JSONMapping]) -> list[Fault]:
    """Warnings with their places in words; those of the trigger keep their path."""
    places, faults = _places(steps), []
    for one in found:
        path, words = "", str(one["field"])
        if words.startswith(("steps[", "actions[")):
            path, inner = _located(places, words)
            words = ", ".join(filter(None, (_words(places, path), inner)))
        faults.append(Fault(f"i-{path}", words, forms.error_text(one["message"])))
    return faults


def warned_rows(steps: StepList, found: Iterable[Fault]) -> Iterator[Row]:
    targets = {fault.target for fault in found}
    for one in steps.walk():
        for row in one.rows:
            if targets & {f"i-{path}" for path in (row.path, *(i.name for i in row.all_inputs))}:
                yield row


def note_warnings(steps: StepList, found: Iterable[Fault]) -> None:
    """Put warnings beside their inputs."""
    inputs = {
        f"i-{one.name}": one for each in steps.walk() for row in each.rows for one in row.all_inputs
    }
    for fault in found:
        if fault.target in inputs:
            inputs[fault.target].warnings.append(fault.message)


def _located(places: Places, field: str) -> tuple[str, str]:
    """The place of a problem's field, and the path of what is wrong within it."""
    without_config = re.sub(r"\]\.config\b", "]", field)  # fields of records may have that name
    parts = re.findall(r"[^.\[\]]+", without_config)[1:]
    path = next(path for n in range(len(parts), -1, -1) if (path := ".".join(parts[:n])) in places)
    return path, ".".join(parts[path.count(".") + 1 if path else 0 :])


def _steps(steps: StepList, place: str, problems: list[JSONObject]) -> list[JSONObject]:
    return [
        _step(row, f"{place}[{index}]", steps.of_hook, problems)
        for index, row in enumerate(steps.rows)
    ]


def _step(row: Row, place: str, of_hook: bool, problems: list[JSONObject]) -> JSONObject:
    values: JSONObject = {}
    for one in row.inputs:
        value, found = _value(row.kind, one.label, one.text, f"{place}.{one.label}")
        problems += found
        if one.label == "next" and one.text == END:
            values["next"] = None
        elif value is not None:
            values[one.label] = value
    if row.entries is not None:
        values[DATA], found = step_data.to_data(row, f"{place}.{DATA}")
        problems += found
    if of_hook:
        return {"type": row.kind, "config": values}
    rest, _ = workflow_form.parse_json(row.rest or "{}", "rest", dict)
    if row.kind in ACTIONS:
        outside = {name: values.pop(name) for name in ("name", "next") if name in values}
        return {**rest, **outside, "type": ACTION, "action_type": row.kind, "config": values}
    if row.kind in LOOPS:
        values["steps"] = _steps(row.lists[0], f"{place}.steps", problems)
    elif row.kind == PARALLEL:
        values["branches"] = [
            _steps(branch, f"{place}.branches[{n}]", problems) for n, branch in enumerate(row.lists)
        ]
    return {**rest, **values, "type": row.kind}


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
    if step_form.is_any(kind, name) and (is_meant or step_form.is_json(text)):
        return workflow_form.parse_json(text, place, object, of_objects=False)
    return text, []


def _add(steps: StepList, target: StepList, kind: str, before: str) -> None:
    rows = [row for one in steps.walk() for row in one.rows]
    if kind not in target.kinds or len(rows) >= MAX_STEPS:
        return
    names = {row.name for row in rows}
    name = next(f"step_{n}" for n in range(1, MAX_STEPS + 2) if f"step_{n}" not in names)
    base = {"type": ACTION, "action_type": kind} if kind in ACTIONS else {"type": kind}
    step = {"name": name, **base, **NEW.get(kind, {})}
    added = step_form.row(step, of_hook=target.of_hook)
    added.is_new, target.new_kind = True, kind
    index = next((n for n in range(len(target.rows)) if str(n) == before), len(target.rows))
    target.rows.insert(index, added)


def _add_branch(steps: StepList, path: str) -> None:
    parent, _, last = path.rpartition(".")
    row = _places(steps).get(parent)
    if not isinstance(row, Row) or (row.kind, last) != (PARALLEL, "branches"):
        return
    if len(row.lists) < MAX_BRANCHES:
        row.lists.append(StepList(is_new=True))


def _siblings(steps: StepList, parent: str) -> list[Any]:
    """The rows of a list, or the branches of a row."""
    places = _places(steps)
    if isinstance(found := places.get(parent), StepList):
        return found.rows
    row = places.get(parent.removesuffix(".branches"))
    return row.lists if isinstance(row, Row) and row.kind == PARALLEL else []


def _move_or_remove(items: list[Any], index: int, verb: str) -> None:
    if verb == "remove":
        del items[index : index + 1]
    else:
        forms.move_row(items, index, verb)


def _places(steps: StepList) -> Places:
    places: Places = {}
    for one in steps.walk():
        places[one.path] = one
        for row in one.rows:
            places[row.path] = row
            places |= {one_input.name: one_input for one_input in row.all_inputs}
    return places


def _words(places: Places, path: str) -> str:
    """The place of an input, step or branch: the steps around it, the outermost first."""
    parts, words = path.split("."), list[str]()
    for n in range(1, len(parts) + 1):
        place = places.get(".".join(parts[:n]))
        if isinstance(place, Row):
            words.append(place.place)
        elif isinstance(place, StepList) and parts[n - 1].isdecimal():
            words.append(gettext("Branch %(number)s", number=int(parts[n - 1]) + 1))
        elif isinstance(place, Input):
            words.append(str(place.title))
    return ", ".join(words) or gettext("Steps")
