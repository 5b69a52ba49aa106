"""Validates workflow definitions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app import config, db, rules
from app.collections.schema import COLLECTION_NAME
from app.errors import problem
from app.outbound import client
from app.types import JSONObject
from app.webhooks import delivery
from app.workflows.language import action_checks, durations, expressions, templates
from app.workflows.language.definition import (
    ACTION,
    ACTIONS,
    CONDITION,
    LOOP,
    PARALLEL,
    PROPERTIES,
    Written,
    event_name,
    lists_in,
)
from app.workflows.language.expressions import Known

MOST_STEPS = 50
MOST_BRANCHES = 10
MOST_TEMPLATES = 500
DEEPEST = 5
LARGEST = 256 * 2**10  # characters of all steps as JSON
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# What clients keep for themselves.
UNREAD = ("id", "description", "label", "position_x", "position_y")
SHARED = ("name", "type", "next")
Problem = JSONObject


def problems(steps: object) -> list[Problem]:
    """The problems of a definition's steps; a draft may have none."""
    if steps == []:
        return []
    if not isinstance(steps, list):
        return [problem("steps", "invalid_type", "Steps must be a list.")]
    text = orjson.dumps(steps)
    if len(text) > LARGEST:
        return [problem("steps", "too_long", f"At most {LARGEST} characters as JSON.")]
    if text.count(b"{{") > MOST_TEMPLATES:
        return [problem("steps", "too_long", f"At most {MOST_TEMPLATES} templates.")]
    check = _Check()
    check.names(steps, "steps", 1)
    if check.count > MOST_STEPS:
        message = f"A workflow has at most {MOST_STEPS} steps, nested ones counted."
        return [problem("steps", "too_long", message)]
    check.series(steps, "steps", frozenset())
    return check.found


def condition_problems(text: object, place: str, known: Known) -> list[Problem]:
    """The problems of a condition."""
    if not isinstance(text, str) or not text.strip():
        return [problem(place, "required", "A condition must be text.")]
    try:
        expressions.check(expressions.condition(text, known.of_event), known)
    except rules.RuleError as error:
        return [problem(place, "expression_invalid", str(error), position=error.position)]
    return []


def collection_problems(value: object, place: str) -> list[Problem]:
    """The problems of a collection's name; the collection may be created later."""
    if isinstance(value, str) and COLLECTION_NAME.fullmatch(value):
        return []
    return [problem(place, "name_invalid", "This is not a valid collection name.")]


def event_problems(value: object, place: str) -> list[Problem]:
    """The problems of an event's name."""
    if event_name(value):
        return []
    message = "Must be one of records.create, records.update, records.delete."
    return [problem(place, "invalid_option", message)]


class _Check:
    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.known: set[str] = set()
        self.count = 0
        # All look-ups of names together; and while others wait for a transaction, there is none.
        self.until = 0 if db.in_transaction() else time.monotonic() + client.BODY_SECONDS

    def add(self, place: str, code: str, message: str, **extra: object) -> None:
        self.found.append(problem(place, code, message, **extra))

    def names(self, steps: object, place: str, depth: int) -> None:
        """Collect the names of all steps, and check that they are objects."""
        if not isinstance(steps, list) or not steps:
            self.add(place, "required", "Add at least one step.")
            return
        if depth > DEEPEST:
            self.add(place, "too_long", f"Steps may be nested at most {DEEPEST} deep.")
            return
        for index, step in enumerate(steps):
            here = f"{place}[{index}]"
            self.count += 1
            if not isinstance(step, dict):
                self.add(here, "invalid_type", "A step must be an object.")
                continue
            self._name(step.get("name"), here)
            for where, inner in _inner(step, here):
                self.names(inner, where, depth + 1)

    def _name(self, name: object, here: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            message = "Use up to 63 letters, digits and _, not starting with a digit."
            self.add(f"{here}.name", "name_invalid", message)
        elif name in self.known:
            self.add(f"{here}.name", "name_duplicate", f"Another step has the name {name}.")
        else:
            self.known.add(name)

    def series(self, steps: object, place: str, extra: frozenset[str]) -> None:
        """Check a list of steps, whose expressions may use some more root names."""
        if not isinstance(steps, list):
            return
        named = _by_name(steps)
        known = Known(frozenset(self.known), extra)
        for index, step in enumerate(steps):
            if isinstance(step, dict):
                here = f"{place}[{index}]"
                self.step(step, here, known)
                for name in ("next", "on_true", "on_false"):
                    self._target(step, name, here, named)
                inner = extra | expressions.IN_LOOPS if step.get("type") == LOOP else extra
                for where, one in _inner(step, here):
                    self.series(one, where, inner)
        self._reach(steps, place)

    def _target(self, step: Written, name: str, here: str, named: Mapping[Any, object]) -> None:
        target = step.get(name)
        if target is not None and not (isinstance(target, str) and target in named):
            message = f"No step {str(target)[:63]} in this list."
            self.add(f"{here}.{name}", "invalid_reference", message)

    def _reach(self, steps: list[object], place: str) -> None:
        reached, left = set(), [0]
        places = {name: steps.index(step) for name, step in _by_name(steps).items()}
        while left:
            index = left.pop()
            if index in reached or index >= len(steps):
                continue
            reached.add(index)
            left += _next_places(steps, index, places)
        for index, step in enumerate(steps):
            if index not in reached and isinstance(step, dict):
                message = f"The step {str(step.get('name'))[:63]} is unreachable."
                self.add(f"{place}[{index}]", "step_unreachable", message)

    def step(self, step: Written, here: str, known: Known) -> None:
        """Check one step without its inner steps."""
        kind = step.get("type")
        if not isinstance(kind, str) or kind not in PROPERTIES:
            message = f"Must be one of: {', '.join(PROPERTIES)}."
            self.add(f"{here}.type", "type_invalid", message)
            return
        self._properties(step, here, PROPERTIES[kind], (*SHARED, *UNREAD))
        if kind == CONDITION and step.get("next") is not None:
            message = "A condition uses on_true and on_false instead."
            self.add(f"{here}.next", "unknown_field", message)
        checks = {ACTION: self._action, LOOP: self._loop, PARALLEL: self._parallel}
        checks.get(kind, self._plain)(step, here, known)

    def _properties(
        self, given: Written, here: str, known: tuple[str, ...], others: tuple[str, ...] = ()
    ) -> None:
        names = [name.lstrip("*") for name in known]
        for name in (name[1:] for name in known if name[0] == "*"):
            if given.get(name) is None:
                self.add(f"{here}.{name}", "required", f"{name} is required.")
        for name, value in given.items():
            if name not in names and name not in others and value is not None:
                self.add(f"{here}.{name[:63]}", "unknown_field", f"Unknown property {name[:63]}.")

    def _plain(self, step: Written, here: str, known: Known) -> None:
        extra = known.extra
        if step["type"] == "wait_condition":
            extra = extra | {"record"}
        for name in ("duration", "poll_interval", "timeout"):
            if step.get(name) is not None and durations.seconds(step[name]) is None:
                message = "Enter a duration such as 30s, 5m, 2h or 1d, up to 366d."
                self.add(f"{here}.{name}", "invalid_duration", message)
        if step.get("expression") is not None:
            inner = Known(known.steps, extra)
            self.found += condition_problems(step["expression"], f"{here}.expression", inner)
        if step["type"] == "wait_event":
            self._event(step, here, known)

    def _event(self, step: Written, here: str, known: Known) -> None:
        if step.get("event") is not None:
            self.found += event_problems(step["event"], f"{here}.event")
        if step.get("collection") is not None:
            self.found += collection_problems(step["collection"], f"{here}.collection")
        if step.get("condition") is not None:
            of_event = Known(known.steps, known.extra, of_event=True)
            self.found += condition_problems(step["condition"], f"{here}.condition", of_event)

    def _loop(self, step: Written, here: str, known: Known) -> None:
        items = step.get("items")
        if isinstance(items, str) and not templates.TEMPLATE.fullmatch(items.strip()):
            message = "Items must be a list, or a template that returns one."
            self.add(f"{here}.items", "invalid_type", message)
        elif items is not None and not isinstance(items, str | list):
            self.add(f"{here}.items", "invalid_type", "Items must be a list or a template.")
        self._templates(items, f"{here}.items", known)

    def _parallel(self, step: Written, here: str, known: Known) -> None:
        branches = step.get("branches")
        if branches is not None and not (isinstance(branches, list) and branches):
            self.add(f"{here}.branches", "invalid_type", "Branches must be lists of steps.")
        elif branches is not None and len(branches) > MOST_BRANCHES:
            self.add(f"{here}.branches", "too_long", f"At most {MOST_BRANCHES} branches.")

    def _action(self, step: Written, here: str, known: Known) -> None:
        kind, given = step.get("action_type"), step.get("config")
        is_known = isinstance(kind, str) and kind in ACTIONS
        if kind is not None and not is_known:
            message = f"Must be one of: {', '.join(ACTIONS)}."
            self.add(f"{here}.action_type", "type_invalid", message)
        if given is not None and not isinstance(given, dict):
            self.add(f"{here}.config", "invalid_type", "Config must be an object.")
        if is_known and isinstance(given, dict):
            self._config(str(kind), given, here, known)

    def _config(self, kind: str, given: Written, here: str, known: Known) -> None:
        place = f"{here}.config"
        self._properties(given, place, ACTIONS[kind])
        self._templates(given, place, known)
        for name, message in action_checks.problems(kind, given):
            self.add(f"{place}.{name}", "invalid_type", message)
        if isinstance(given.get("collection"), str) and not templates.has_template(
            given["collection"]
        ):
            self.found += collection_problems(given["collection"], f"{place}.collection")
        if isinstance(given.get("filter"), str):
            self._filter(templates.blank(given["filter"]), f"{place}.filter")
        if kind == "send_webhook" and isinstance(given.get("url"), str):
            self._url(given["url"], f"{place}.url")

    def _filter(self, text: str, place: str) -> None:
        try:
            rules.condition(text, rules.Scope({}, open=True))
        except rules.RuleError as error:
            self.add(place, "filter_invalid", str(error), position=error.position)

    def _url(self, url: str, place: str) -> None:
        # What a template makes of it is looked at when the request is made.
        wrong = None
        if not templates.has_template(url):
            wrong = client.url_problem(url, delivery.rules(config.current()), self.until)
        if wrong:
            self.add(place, "invalid_url", wrong)

    def _templates(self, value: object, place: str, known: Known) -> None:
        for where, message, position in templates.wrong(value, known, place):
            self.add(where, "template_invalid", message, position=position)


def _by_name(steps: list[object]) -> dict[str, Written]:
    named = (step for step in steps if isinstance(step, dict))
    return {step["name"]: step for step in named if isinstance(step.get("name"), str)}


def _inner(step: Written, here: str) -> Iterator[tuple[str, object]]:
    for index, one in enumerate(lists_in(step)):
        name = "steps" if step.get("type") == LOOP else f"branches[{index}]"
        yield f"{here}.{name}", one


def _next_places(steps: list[Any], index: int, places: Mapping[Any, int]) -> list[int]:
    step = steps[index] if isinstance(steps[index], dict) else {}
    if step.get("type") == CONDITION:
        named = [step.get("on_true"), step.get("on_false")]
    elif "next" in step:
        named = [step["next"]]
    else:
        return [index + 1]
    return [places[name] for name in named if isinstance(name, str) and name in places]
