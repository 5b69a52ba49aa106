"""Warns about fields that a workflow names and that its collections do not have.

A field that the caller may not view counts as missing: the warning tells no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from app import rules
from app.auth.principal import Principal
from app.collections import access
from app.collections import definition as definitions
from app.errors import NotFound, problem
from app.types import JSONObject
from app.workflows.language import expressions, templates
from app.workflows.language.definition import (
    ACTION,
    CONDITION,
    WAIT_CONDITION,
    WAIT_EVENT,
    Written,
    lists_in,
)
from app.workflows.models import EVENT, HOOK, Workflow

CODE = "field_missing"
MAX_WARNINGS = 50
EVENT_NAMES = expressions.GLOBAL_NAMES | expressions.LOOP_NAMES | {"event", "record", "previous"}
RECORDS = ("record", "previous")
Named = tuple[str, str, str]  # place, collection, field
Path = tuple[str, ...]


def warnings(workflow: Workflow, by: Principal) -> list[JSONObject]:
    """The warnings of a workflow or hook, up to MAX_WARNINGS."""
    visible: dict[str, frozenset[str] | None] = {}
    found: dict[tuple[str, str], JSONObject] = {}
    for place, collection, name in _named(workflow):
        if collection not in visible:
            visible[collection] = _visible_fields(collection, by)
        fields = visible[collection]
        if fields is not None and name not in fields and len(found) < MAX_WARNINGS:
            message = f"{collection} has no field {name[:63]}, or hides it from you."
            found.setdefault((place, name), problem(place, CODE, message))
    return list(found.values())


def _visible_fields(collection: str, by: Principal) -> frozenset[str] | None:
    try:
        found = access.if_open(by, definitions.get(collection), "view")
    except NotFound:  # another warning says so
        return None
    return frozenset(found.readable) if found else None


def _named(workflow: Workflow) -> Iterator[Named]:
    trigger = workflow.trigger
    collection = trigger.get("collection") if trigger.get("type") == EVENT else None
    if collection and trigger.get("condition"):
        yield from _in_event_condition(trigger["condition"], "trigger.condition", collection)
    steps, place = workflow.steps, "steps"
    if workflow.kind == HOOK:
        steps, place = [step for step in steps if step["type"] == ACTION], "actions"
        if collection and workflow.condition:
            yield from _in_event_condition(workflow.condition, "condition", collection)
            paths = _paths(partial(expressions.condition, workflow.condition, True))
            yield from _of_trigger(paths, "condition", collection)
    yield from _in_steps(steps, place, collection)


def _in_steps(steps: Iterable[Written], place: str, trigger: str | None) -> Iterator[Named]:
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        if step["type"] == ACTION:
            yield from _in_action(step["config"], f"{path}.config", trigger)
        elif step["type"] in (CONDITION, WAIT_CONDITION) and trigger:
            parse = partial(expressions.condition, step["expression"])
            yield from _of_trigger(_paths(parse), f"{path}.expression", trigger)
        elif step["type"] == WAIT_EVENT and step.get("condition") and step.get("collection"):
            names = (step["condition"], f"{path}.condition", step["collection"])
            yield from _in_event_condition(*names)
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _in_steps(inner, f"{path}.{branch}", trigger)


def _in_action(config: Written, place: str, trigger: str | None) -> Iterator[Named]:
    collection = config.get("collection")
    if isinstance(collection, str) and not templates.has_template(collection):
        if isinstance(config.get("data"), Mapping):
            yield from ((f"{place}.data.{name}", collection, name) for name in config["data"])
        for name in _filtered(config.get("filter")):
            yield f"{place}.filter", collection, name
        sort = config.get("sort")
        if isinstance(sort, str) and not templates.has_template(sort):
            for name in filter(None, (part.strip().lstrip("+-") for part in sort.split(","))):
                yield f"{place}.sort", collection, name.partition(".")[0]
    if trigger:
        for path, text in templates.expressions_in(config, place):
            yield from _of_trigger(_template_paths(text), path, trigger)


def _in_event_condition(text: str, place: str, collection: str) -> Iterator[Named]:
    for path in _paths(partial(expressions.condition, text, True)):
        if path[0] in RECORDS and len(path) > 1:
            yield place, collection, path[1]
        elif path[0] not in EVENT_NAMES:
            yield place, collection, path[0]


def _of_trigger(paths: Iterable[Path], place: str, collection: str) -> Iterator[Named]:
    for path in paths:
        if len(path) > 2 and path[0] == "trigger" and path[1] in RECORDS:
            yield place, collection, path[2]


def _filtered(text: object) -> list[str]:
    if not isinstance(text, str):
        return []
    scope = rules.Scope({}, open=True)
    return [path[0] for path in _paths(lambda: rules.condition(templates.blank(text), scope))]


def _template_paths(text: str) -> list[Path]:
    if templates.PATH.fullmatch(text):
        return [tuple(text.split("."))]
    return _paths(partial(expressions.value, text))


def _paths(parse: Callable[[], rules.Node]) -> list[Path]:
    try:
        node = parse()
    except rules.RuleError:  # of an older version; running it says so
        return []
    return [part.path for part in rules.walk(node) if isinstance(part, rules.Name)]
