"""Validates workflow definitions and the config of actions, whose templates render at run time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
from email_validator import validate_email

from app import db, rules
from app.accounts import service as accounts
from app.collections import definitions as collections
from app.collections.schema import COLLECTION_NAME, FIELD_NAME
from app.config import current as current_settings
from app.errors import problem
from app.operator.types import OF_WORKFLOWS
from app.outbound import client, web_waits
from app.records.read import aggregate
from app.types import JSONObject
from app.webhooks import delivery
from app.workflows.language import definition, expressions, recipients, templates
from app.workflows.language.definition import (
    ACTION,
    ACTIONS,
    CONDITION,
    EVENTS,
    FOR_EACH,
    LOOP,
    LOOPS,
    ON_ERROR,
    OWN_PROPERTIES,
    OWN_STEPS,
    PARALLEL,
    PROPERTIES,
    RECORD_EVENTS,
    Written,
    event_name,
    lists_in,
)
from app.workflows.language.expressions import AvailableNames

MAX_STEPS = 50
MAX_BRANCHES = 10
MAX_TEMPLATES = 500
MAX_DEPTH = 5
MAX_FOR_EACH = 2  # within each other
MAX_CHARACTERS = 256 * 2**10  # characters of all steps as JSON
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# Properties for clients; ignored here.
CLIENT_PROPERTIES = ("id", "description", "label", "position_x", "position_y")
COMMON_PROPERTIES = ("name", "type", "next")
Problem = JSONObject
MAX_ADDRESSES = 20  # of one mail
WRONG_RECIPIENT = (
    "Recipients are addresses, or one of {user: id}, {role: name}, {group: name}, {field: name}."
)
WRITES = ("create_record", "update_record", "delete_record")
VIEW_IS_READ = "This is a view, which is only read: write to the collection that it reads."
VIEW_NOT_WALKED = (
    "This is a view: walk the collection that it reads, or list the view by query_records."
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
RECORD_TEXTS = ("collection", "filter", "sort")
STABLE = ("id", "created_at", "created_by")
EVERYTHING = "*"
TEXTS = ("url", "to", "subject", "collection", "record_id", "filter", "sort")


def problems(steps: object) -> list[Problem]:
    """The problems of a definition's steps; a draft may have none."""
    if steps == []:
        return []
    if not isinstance(steps, list):
        return [problem("steps", "invalid_type", "Steps must be a list.")]
    text = orjson.dumps(steps)
    if len(text) > MAX_CHARACTERS:
        return [problem("steps", "too_long", f"At most {MAX_CHARACTERS} characters as JSON.")]
    if text.count(b"{{") > MAX_TEMPLATES:
        return [problem("steps", "too_long", f"At most {MAX_TEMPLATES} templates.")]
    check = _Check()
    check.names(steps, "steps", 1)
    if check.count > MAX_STEPS:
        message = f"A workflow has at most {MAX_STEPS} steps, nested ones counted."
        return [problem("steps", "too_long", message)]
    check.series(steps, "steps", frozenset())
    return check.found


def condition_problems(text: object, place: str, names: AvailableNames) -> list[Problem]:
    """The problems of a condition."""
    if not isinstance(text, str) or not text.strip():
        return [problem(place, "required", "A condition must be text.")]
    try:
        expressions.check(expressions.condition(text, names.of_event), names)
    except rules.RuleError as error:
        return [problem(place, "expression_invalid", str(error), position=error.position)]
    return []


def collection_problems(value: object, place: str) -> list[Problem]:
    """The problems of a collection's name; the collection may be created later."""
    if isinstance(value, str) and COLLECTION_NAME.fullmatch(value):
        return []
    return [problem(place, "name_invalid", "This is not a valid collection name.")]


def event_problems(settings: Written, place: str, names: AvailableNames) -> list[Problem]:
    """The problems of an event that starts a workflow or that a step waits for."""
    event, found = event_name(settings.get("event")), list[Problem]()
    is_of_records = event is None or event in RECORD_EVENTS
    if event is None:
        message = f"Must be one of {', '.join(EVENTS)}."
        found.append(problem(f"{place}.event", "invalid_option", message))
    if settings.get("collection") is not None:
        wrong = collection_problems(settings["collection"], f"{place}.collection")
        message = "Only events of records are of a collection."
        refused = [problem(f"{place}.collection", "unknown_field", message)]
        if is_of_records and not wrong and collections.is_view(settings["collection"]):
            wrong = [problem(f"{place}.collection", *collections.NO_CHANGES)]
        found += wrong if is_of_records else refused
    if settings.get("condition") is not None:
        names = event_names(settings, names)
        found += condition_problems(settings["condition"], f"{place}.condition", names)
    return found


def event_names(settings: Written, names: AvailableNames) -> AvailableNames:
    """The names that a condition on an event may use."""
    if event_name(settings.get("event")) in OF_WORKFLOWS:
        return replace(names, extra=names.extra | {"event", "data"})
    return replace(names, of_event=True)


class _Check:
    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.known: set[str] = set()
        self.count = 0
        # One deadline for all DNS look-ups; none within a transaction, which would block others.
        self.until = 0 if db.in_transaction() else web_waits.lookup_deadline()

    def add(self, place: str, code: str, message: str, **extra: object) -> None:
        self.found.append(problem(place, code, message, **extra))

    def names(self, steps: object, place: str, depth: int) -> None:
        if not isinstance(steps, list) or not steps:
            self.add(place, "required", "Add at least one step.")
            return
        if depth > MAX_DEPTH:
            self.add(place, "too_long", f"Steps may be nested at most {MAX_DEPTH} deep.")
            return
        for index, step in enumerate(steps):
            path = f"{place}[{index}]"
            self.count += 1
            if not isinstance(step, dict):
                self.add(path, "invalid_type", "A step must be an object.")
                continue
            name = step.get("name")
            if not isinstance(name, str) or not NAME.fullmatch(name):
                message = "Use up to 63 letters, digits and _, not starting with a digit."
                self.add(f"{path}.name", "name_invalid", message)
            elif name in self.known:
                self.add(f"{path}.name", "name_duplicate", f"Another step has the name {name}.")
            else:
                self.known.add(name)
            for inner_path, inner in _inner(step, path):
                self.names(inner, inner_path, depth + 1)

    def series(self, steps: object, place: str, extra: frozenset[str]) -> None:
        """Check a list of steps, whose expressions may use some more root names."""
        if not isinstance(steps, list):
            return
        by_name = _by_name(steps)
        available = AvailableNames(frozenset(self.known), extra)
        for index, step in enumerate(steps):
            if isinstance(step, dict):
                path = f"{place}[{index}]"
                self.step(step, path, available)
                for name in ("next", "on_true", "on_false"):
                    target = step.get(name)
                    if target is not None and not (isinstance(target, str) and target in by_name):
                        message = f"No step {str(target)[:63]} in this list."
                        self.add(f"{path}.{name}", "invalid_reference", message)
                inner = extra | expressions.LOOP_NAMES if step.get("type") in LOOPS else extra
                for inner_path, inner_steps in _inner(step, path):
                    self.series(inner_steps, inner_path, inner)
        self._reach(steps, place)

    def _reach(self, steps: list[object], place: str) -> None:
        reached, pending = set(), [0]
        places = {name: steps.index(step) for name, step in _by_name(steps).items()}
        while pending:
            index = pending.pop()
            if index in reached or index >= len(steps):
                continue
            reached.add(index)
            pending += _next_places(steps, index, places)
        for index, step in enumerate(steps):
            if index not in reached and isinstance(step, dict):
                message = f"The step {str(step.get('name'))[:63]} is unreachable."
                self.add(f"{place}[{index}]", "step_unreachable", message)

    def step(self, step: Written, path: str, available: AvailableNames) -> None:
        """Check one step without its inner steps."""
        kind = step.get("type")
        if not isinstance(kind, str) or kind not in {*PROPERTIES, *OWN_STEPS}:
            message = f"Must be one of: {', '.join((*PROPERTIES, *OWN_STEPS))}."
            self.add(f"{path}.type", "type_invalid", message)
            return
        allowed = PROPERTIES.get(kind, OWN_PROPERTIES)
        self._properties(step, path, allowed, (*COMMON_PROPERTIES, *CLIENT_PROPERTIES))
        if kind == CONDITION and step.get("next") is not None:
            message = "A condition uses on_true and on_false instead."
            self.add(f"{path}.next", "unknown_field", message)
        checks = {ACTION: self._action, LOOP: self._loop, PARALLEL: self._parallel}
        checks[FOR_EACH] = self._for_each
        checks |= dict.fromkeys(OWN_STEPS, self._own)
        checks.get(kind, self._plain)(step, path, available)

    def _properties(
        self, values: Written, path: str, allowed: tuple[str, ...], ignored: tuple[str, ...] = ()
    ) -> None:
        names = [name.lstrip("*") for name in allowed]
        for name in (name[1:] for name in allowed if name[0] == "*"):
            if values.get(name) is None:
                self.add(f"{path}.{name}", "required", f"{name} is required.")
        for name, value in values.items():
            if name not in names and name not in ignored and value is not None:
                self.add(f"{path}.{name[:63]}", "unknown_field", f"Unknown property {name[:63]}.")

    def _plain(self, step: Written, path: str, available: AvailableNames) -> None:
        extra = available.extra
        if step["type"] == "wait_condition":
            extra = extra | {"record"}
        for name in ("duration", "poll_interval", "timeout"):
            if step.get(name) is not None and definition.seconds_of(step[name]) is None:
                message = "Enter a duration such as 30s, 5m, 2h or 1d, up to 366d."
                self.add(f"{path}.{name}", "invalid_duration", message)
        if step.get("expression") is not None:
            condition_names = AvailableNames(available.steps, extra)
            self.found += condition_problems(
                step["expression"], f"{path}.expression", condition_names
            )
        if step["type"] == "wait_event":
            wrong = event_problems(step, path, available)
            is_missing = step.get("event") is None  # which is reported already
            self.found += [
                one for one in wrong if not (is_missing and one["field"] == f"{path}.event")
            ]

    def _loop(self, step: Written, path: str, available: AvailableNames) -> None:
        items = step.get("items")
        if isinstance(items, str) and not templates.TEMPLATE.fullmatch(items.strip()):
            message = "Items must be a list, or a template that returns one."
            self.add(f"{path}.items", "invalid_type", message)
        elif items is not None and not isinstance(items, str | list):
            self.add(f"{path}.items", "invalid_type", "Items must be a list or a template.")
        self._templates(items, f"{path}.items", available)

    def _for_each(self, step: Written, path: str, available: AvailableNames) -> None:
        settings = {name: step.get(name) for name in RECORD_TEXTS}
        for name, value in settings.items():
            if value is not None and not isinstance(value, str):
                self.add(f"{path}.{name}", "invalid_type", "Must be text.")
        self._templates(settings, path, available)
        self._records(step, path, VIEW_NOT_WALKED)
        if step.get("on_error") not in (None, *ON_ERROR):
            message = f"Must be one of: {', '.join(ON_ERROR)}."
            self.add(f"{path}.on_error", "invalid_option", message)
        if _depth_of_for_each(step) > MAX_FOR_EACH:
            message = f"At most {MAX_FOR_EACH} for_each steps may be within each other."
            self.add(path, "too_long", message)
        written, sort = _fields_written(step, step.get("collection")), step.get("sort")
        for key in sort.split(",") if isinstance(sort, str) else ():
            name = key.strip().lstrip("+-")
            name = name.partition(".")[0]
            if name in written or (name not in STABLE and EVERYTHING in written):
                message = (
                    f"The steps may change {name[:63]}, by which the records are sorted: sort by"
                    " another field."
                )
                self.add(f"{path}.sort", "invalid_option", message)

    def _records(self, settings: Written, place: str, refused: str | None) -> None:
        """Check the collection and the filter of a step on records; `refused` is said to views."""
        collection, filter = settings.get("collection"), settings.get("filter")
        if isinstance(collection, str) and not templates.has_template(collection):
            wrong = collection_problems(collection, f"{place}.collection")
            if refused and not wrong and collections.is_view(collection):
                wrong = [problem(f"{place}.collection", collections.NO_CHANGES[0], refused)]
            self.found += wrong
        if isinstance(filter, str):
            try:
                rules.condition(templates.blank(filter), expressions.FILTERS)
            except rules.RuleError as error:
                self.add(f"{place}.filter", "filter_invalid", str(error), position=error.position)

    def _parallel(self, step: Written, path: str, available: AvailableNames) -> None:
        branches = step.get("branches")
        if branches is not None and not (isinstance(branches, list) and branches):
            self.add(f"{path}.branches", "invalid_type", "Branches must be lists of steps.")
        elif branches is not None and len(branches) > MAX_BRANCHES:
            self.add(f"{path}.branches", "too_long", f"At most {MAX_BRANCHES} branches.")

    def _own(self, step: Written, path: str, available: AvailableNames) -> None:
        given = step.get("input")
        if given is not None and not isinstance(given, dict) and not _is_template(given):
            message = "Input must be an object, or a template that returns one."
            self.add(f"{path}.input", "invalid_type", message)
        self._templates(given, f"{path}.input", available)

    def _action(self, step: Written, path: str, available: AvailableNames) -> None:
        kind, config = step.get("action_type"), step.get("config")
        is_known = isinstance(kind, str) and kind in ACTIONS
        if kind is not None and not is_known:
            message = f"Must be one of: {', '.join(ACTIONS)}."
            self.add(f"{path}.action_type", "type_invalid", message)
        if config is not None and not isinstance(config, dict):
            self.add(f"{path}.config", "invalid_type", "Config must be an object.")
        if is_known and isinstance(config, dict):
            self._config(str(kind), config, path, available)

    def _config(self, kind: str, config: Written, path: str, available: AvailableNames) -> None:
        place = f"{path}.config"
        self._properties(config, place, ACTIONS[kind])
        self._templates(config, place, available)
        for name, message in action_problems(kind, config):
            self.add(f"{place}.{name}", "invalid_type", message)
        self._records(config, place, VIEW_IS_READ if kind in WRITES else None)
        url = config.get("url")
        # Rendered URLs are checked at run time.
        if kind == "send_webhook" and isinstance(url, str) and not templates.has_template(url):
            refusal = client.url_problem(url, delivery.rules(current_settings()), self.until)
            if refusal:
                self.add(f"{place}.url", "invalid_url", refusal)

    def _templates(self, value: object, place: str, available: AvailableNames) -> None:
        for path, message, position in templates.problems(value, available, place):
            self.add(path, "template_invalid", message, position=position)


def _by_name(steps: list[object]) -> dict[str, Written]:
    objects = (step for step in steps if isinstance(step, dict))
    return {step["name"]: step for step in objects if isinstance(step.get("name"), str)}


def _inner(step: Written, path: str) -> Iterator[tuple[str, object]]:
    for index, steps in enumerate(lists_in(step)):
        name = "steps" if step.get("type") in LOOPS else f"branches[{index}]"
        yield f"{path}.{name}", steps


def _depth_of_for_each(step: object) -> int:
    """How many `for_each` steps are within each other at most, from a step on."""
    if not isinstance(step, dict):
        return 0
    lists = [steps for steps in lists_in(step) if isinstance(steps, list)]
    inner = max((_depth_of_for_each(one) for steps in lists for one in steps), default=0)
    return inner + (step.get("type") == FOR_EACH)


def _fields_written(step: Written, collection: object) -> set[str]:
    """The fields of a collection that the steps within another change; EVERYTHING if unknown."""
    found = set[str]()
    for steps in lists_in(step):
        for inner in steps if isinstance(steps, list) else ():
            if not isinstance(inner, dict):
                continue
            found |= _fields_written(inner, collection)
            config = inner.get("config")
            if inner.get("action_type") != "update_record" or not isinstance(config, dict):
                continue
            target, data = config.get("collection"), config.get("data")
            names = [one.lower() if isinstance(one, str) else "" for one in (target, collection)]
            if names[0] == names[1] or any(map(templates.has_template, names)):
                found |= data.keys() if isinstance(data, dict) else {EVERYTHING}
                found.add("updated_at")
    return found


def _next_places(steps: list[Any], index: int, places: Mapping[Any, int]) -> list[int]:
    step = steps[index] if isinstance(steps[index], dict) else {}
    if step.get("type") == CONDITION:
        targets = [step.get("on_true"), step.get("on_false")]
    elif "next" in step:
        targets = [step["next"]]
    else:
        return [index + 1]
    return [places[name] for name in targets if isinstance(name, str) and name in places]


def action_problems(kind: str, config: Written) -> Iterator[tuple[str, str]]:
    """The problems of an action's config: property and message."""
    for name in (name for name in TEXTS if config.get(name) is not None):
        is_recipient = name == "to" and isinstance(config[name], list | dict)
        if not isinstance(config[name], str) and not is_recipient:
            yield name, "Must be text."
    if kind == "send_email" and not isinstance(config.get("body", ""), str):
        yield "body", "Must be text."
    if kind == "send_email":
        yield from _address_problems(config.get("to"))
    data = config.get("data")
    if data is not None and not isinstance(data, dict) and not _is_template(data):
        yield "data", "Must be an object of the record's fields, or a template."
    for name in ("functions", "group_by"):
        yield from _list_problems(name, config.get(name))
    limit = config.get("limit")
    if limit is not None and not _is_template(limit) and not _is_between(limit, 1, 100):
        yield "limit", "Must be a number from 1 to 100."
    method = config.get("method")
    if method is not None and not (isinstance(method, str) and method.upper() in METHODS):
        yield "method", f"Must be one of: {', '.join(METHODS)}."
    yield from _header_problems(config.get("headers"))


def _list_problems(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The problems of a comma-separated text, or list, of functions or of fields."""
    given = value if isinstance(value, list) else [value]
    texts = [text for text in given if isinstance(text, str)]
    if value is not None and len(texts) < len(given):
        yield name, "Must be text, or a list of texts."
    elif value and name == "functions" and not any(map(templates.has_template, texts)):
        for call in (call.strip() for text in texts for call in text.split(",")):
            if call and aggregate.FUNCTION.fullmatch(call) is None:
                yield name, f"{call[:80]} {aggregate.NOT_A_FUNCTION}"


def _address_problems(value: object) -> Iterator[tuple[str, str]]:
    addresses = recipients.of_config(value) if isinstance(value, list | str | dict) else []
    if isinstance(value, list) and not 1 <= len(value) <= MAX_ADDRESSES:
        yield "to", f"From 1 to {MAX_ADDRESSES} addresses."
    for item in addresses:
        if isinstance(item, dict):
            kinds = [kind for kind in item if kind in recipients.KINDS]
            text = next(iter(item.values()), None)
            if len(item) != 1 or not kinds or not isinstance(text, str) or not text.strip():
                yield "to", WRONG_RECIPIENT
            elif kinds == [recipients.FIELD] and not FIELD_NAME.fullmatch(text):
                yield "to", f"{text[:80]!r} is not the name of a field."
        elif not isinstance(item, str):
            yield "to", WRONG_RECIPIENT
        elif not templates.has_template(item) and address(item) is None:
            yield "to", f"{item[:80]!r} is not an email address."


def _header_problems(headers: object) -> Iterator[tuple[str, str]]:
    if headers is None:
        return
    if not isinstance(headers, dict) or len(headers) > 50:
        yield "headers", "Must be an object of at most 50 headers."
        return
    for name, value in headers.items():
        short_name = name[:80]
        if not client.HEADER_NAME.fullmatch(name):
            yield "headers", f"{short_name!r} is not a valid header name."
        elif _is_reserved(name.lower()):
            yield "headers", f"{short_name} is set by the service."
        elif not isinstance(value, str):
            yield "headers", f"The value of {short_name} must be text."


def _is_reserved(header: str) -> bool:
    normalized = header.replace("_", "-")
    return normalized == "idempotency-key" or (
        delivery.is_reserved(normalized) and header != "content-type"
    )


def _is_template(value: object) -> bool:
    return isinstance(value, str) and bool(templates.TEMPLATE.fullmatch(value.strip()))


def _is_between(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def address(text: str) -> str | None:
    """The normalized email address; None if the text is not one."""
    if not accounts.is_email(text):
        return None
    return str(validate_email(text, check_deliverability=False).normalized)
