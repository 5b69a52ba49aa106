"""Warns about collections that workflows and hooks name but that do not exist yet, and fields that
these do not have.

A field that the caller may not view counts as missing: the warning tells no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from app import db, rules
from app.accounts.models import Group, name_key
from app.auth.principal import Principal
from app.collections import access, aggregates, definitions
from app.collections.models import Collection
from app.errors import NotFound, problem
from app.records.read import aggregate
from app.records.write import values
from app.rules.named import GROUP
from app.types import JSONObject
from app.workflows.language import expressions, recipients, templates
from app.workflows.language.definition import (
    ACTION,
    FOR_EACH,
    LOOPS,
    WAIT_EVENT,
    Written,
    lists_in,
)
from app.workflows.models import HOOK, Trigger, Workflow

Path = tuple[str, ...]
FUNCTION = re.compile(r"[a-z]+(?=\s*\()", re.IGNORECASE)
INNER = ("steps", "branches", "expression", "condition")
CREATE, UPDATE, AGGREGATE = "create_record", "update_record", "aggregate_records"


def in_step(step: Written, place: str) -> Iterator[tuple[str, Path]]:
    """The names that a step uses, without those of inner steps, and their places."""
    prefix = "config" if step["type"] == ACTION else ""
    texts = step["config"] if prefix else {n: v for n, v in step.items() if n not in INNER}
    for path, text in templates.expressions_in(texts, f"{place}.{prefix}".rstrip(".")):
        if templates.PATH.fullmatch(text):
            yield path, tuple(text.split("."))
        else:
            yield from ((path, name) for name in _in(partial(expressions.value, text)))
    for name in ("expression", "condition"):
        if isinstance(step.get(name), str):
            found = in_condition(step[name], on_event=step["type"] == WAIT_EVENT)
            yield from ((f"{place}.{name}", path) for path in found)


def in_condition(text: str, *, on_event: bool = False) -> list[Path]:
    """The names of a condition."""
    return _in(partial(expressions.condition, text, on_event))


def in_filter(text: str) -> list[Path]:
    """The names of a filter, which may have templates."""
    scope = replace(expressions.FILTERS, is_stored=True)
    return _in(lambda: rules.condition(templates.blank(text), scope))


def _in(parse: Callable[[], rules.Node]) -> list[Path]:
    try:
        node = parse()
    except rules.RuleError:  # of an older version; running it says so
        return []
    return [part.path for part in rules.walk(node) if isinstance(part, rules.Name | rules.Old)]


COLLECTION_MISSING, FIELD_MISSING = "collection_missing", "field_missing"
GROUP_MISSING = "group_missing"
MISSING = "The collection “{name}” does not exist. Create it or correct the name."
MAX_WARNINGS = 50
EVENT_NAMES = expressions.GLOBAL_NAMES | expressions.LOOP_NAMES | {"event", "record", "previous"}
RECORDS = ("record", "previous")
Named = tuple[str, str, str]  # place, collection, field


def collection_warnings(workflows: Sequence[Workflow]) -> dict[str, list[JSONObject]]:
    """The warnings of each workflow, by its id."""
    named = {workflow.id: list(_named_collections(workflow)) for workflow in workflows}
    keys = {name.lower() for places in named.values() for _, name in places}
    query = sa.select(Collection.name_key).where(Collection.name_key.in_(sorted(keys)))
    missing = keys - set(db.db.session.scalars(query)) if keys else keys
    return {
        id: [
            problem(place, COLLECTION_MISSING, MISSING.format(name=name))
            for place, name in places
            if name.lower() in missing
        ]
        for id, places in named.items()
    }


def _named_collections(workflow: Workflow) -> Iterator[tuple[str, str]]:
    if workflow.trigger.get("collection"):
        yield "trigger.collection", workflow.trigger["collection"]
    if workflow.kind == HOOK:
        actions = [step for step in workflow.steps if step["type"] == ACTION]
        yield from _collections_in_steps(actions, "actions")
    else:
        yield from _collections_in_steps(workflow.steps, "steps")


def _collections_in_steps(steps: Sequence[Written], place: str) -> Iterator[tuple[str, str]]:
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        is_action = step["type"] == ACTION
        settings = step["config"] if is_action else step
        of_records = is_action or step["type"] in (WAIT_EVENT, FOR_EACH)
        name = settings.get("collection") if of_records else None
        if name and not templates.has_template(name):
            yield f"{path}.{'config.' if is_action else ''}collection", name
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _collections_in_steps(inner, f"{path}.{branch}")


def field_warnings(workflow: Workflow, by: Principal) -> list[JSONObject]:
    """The warnings of a workflow or hook, up to MAX_WARNINGS."""
    visible: dict[str, frozenset[str] | None] = {}
    found: dict[tuple[str, str], JSONObject] = {}
    for place, collection, name in _named_fields(workflow):
        if collection not in visible:
            visible[collection] = visible_fields(collection, by)
        fields = visible[collection]
        if fields is not None and name not in fields and len(found) < MAX_WARNINGS:
            message = f"{collection} has no field {name[:63]}, or hides it from you."
            found.setdefault((place, name), problem(place, FIELD_MISSING, message))
    return [*found.values(), *_group_warnings(workflow)]


def _group_warnings(workflow: Workflow) -> Iterator[JSONObject]:
    """The groups that mails go to and that the account does not have."""
    named = [(place, name) for _, place, name in recipients.named(workflow.steps, GROUP)]
    keys = {name_key(name) for _, name in named}
    own = sa.select(Group.name_key).where(Group.account_id == workflow.account_id)
    present = set(db.db.session.scalars(own.where(Group.name_key.in_(keys)))) if keys else keys
    for place, name in named[:MAX_WARNINGS]:
        if name_key(name) not in present:
            message = f"The account has no group {name[:63]}."
            yield problem(place, GROUP_MISSING, message)


def unfit(steps: Sequence[Written], by: Principal, place: str = "steps") -> Iterator[JSONObject]:
    """The problems of functions and of changes of lists that fields the caller views do not take.

    What the caller does not view is told by `field_warnings` alone.
    """
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        if step["type"] == ACTION:
            yield from _unfit_in(step, by, f"{path}.config")
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from unfit(inner, by, f"{path}.{branch}")


def _unfit_in(step: Written, by: Principal, place: str) -> Iterator[JSONObject]:
    kind, config = step["action_type"], step["config"]
    name, data, calls = (config.get(key) for key in ("collection", "data", "functions"))
    if kind not in (CREATE, UPDATE, AGGREGATE) or templates.has_template(name):
        return
    try:
        found = access.if_open(by, definitions.get_current(name), "view")
    except NotFound:  # a warning says so
        return
    fields = found.readable if found else {}
    text = ",".join(calls) if isinstance(calls, list) else str(calls or "")
    for call in text.split(",") if kind == AGGREGATE and not templates.has_template(text) else ():
        match = aggregate.FUNCTION.fullmatch(call.strip())
        field = fields.get(match[2]) if match else None
        if match and field and field.like.rule_type not in aggregates.TAKEN[match[1].lower()]:
            function = match[1].lower()
            message = f"There is no {function} of a {field.like.type}."
            yield problem(f"{place}.functions", "invalid_option", message)
    for key, value in data.items() if kind != AGGREGATE and isinstance(data, Mapping) else ():
        field = fields.get(key)
        if field and field.is_list and values.is_list_change(value):
            wrong = _unfit_change(value) if kind == UPDATE else values.ONLY_IN_CHANGES
            yield from [problem(f"{place}.data.{key}", "invalid_type", wrong)] if wrong else []


def _unfit_change(value: Written) -> str | None:
    is_known = value.keys() <= values.LIST_CHANGES
    are_lists = all(isinstance(v, list) or templates.has_template(v) for v in value.values())
    return None if is_known and are_lists else values.A_LIST_CHANGE


def visible_fields(collection: str, by: Principal) -> frozenset[str] | None:
    """The fields that the caller may view; None if there is no collection or no view of it."""
    try:
        found = access.if_open(by, definitions.get_current(collection), "view")
    except NotFound:  # another warning says so
        return None
    return frozenset(found.readable) if found else None


def _named_fields(workflow: Workflow) -> Iterator[Named]:
    trigger = workflow.trigger
    collection = trigger.get("collection") if trigger.get("type") == Trigger.EVENT else None
    steps, place = workflow.steps, "steps"
    if workflow.kind == HOOK:
        steps, place = [step for step in steps if step["type"] == ACTION], "actions"
    conditions = {"trigger.condition": trigger.get("condition"), "condition": workflow.condition}
    for name, text in conditions.items():
        if collection and text:
            yield from _in_event_condition(text, name, collection)
            paths = in_condition(text, on_event=True)
            yield from _of_trigger(((name, path) for path in paths), collection)
    yield from _fields_in_steps(steps, place, collection)


def _fields_in_steps(
    steps: Iterable[Written], place: str, trigger: str | None, item: str | None = None
) -> Iterator[Named]:
    """The fields that steps name of the collections of the trigger and of the `for_each`."""
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        if step["type"] == ACTION:
            yield from _fields_in_action(step["config"], f"{path}.config")
        elif step["type"] == FOR_EACH:
            yield from _fields_in_action(step, path)
        elif step["type"] == WAIT_EVENT and step.get("condition") and step.get("collection"):
            names = (step["condition"], f"{path}.condition", step["collection"])
            yield from _in_event_condition(*names)
        if trigger:
            yield from _of_trigger(in_step(step, path), trigger)
        for name_place, name in in_step(step, path):
            if item and name[0] == "item" and len(name) > 1:
                yield name_place, item, name[1]
        of_item = item if step["type"] not in LOOPS else None
        if step["type"] == FOR_EACH and not templates.has_template(step["collection"]):
            of_item = step["collection"]
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _fields_in_steps(inner, f"{path}.{branch}", trigger, of_item)


def _fields_in_action(config: Written, place: str) -> Iterator[Named]:
    collection, filter, sort = (config.get(name) for name in ("collection", "filter", "sort"))
    if not isinstance(collection, str) or templates.has_template(collection):
        return
    if isinstance(config.get("data"), Mapping):
        yield from ((f"{place}.data.{name}", collection, name) for name in config["data"])
    for path in in_filter(filter) if isinstance(filter, str) else ():
        yield f"{place}.filter", collection, path[0]
    calls, groups = config.get("functions"), config.get("group_by")
    for setting, value in (("functions", calls), ("group_by", groups)):
        text = ",".join(value) if isinstance(value, list) else str(value or "")
        if not templates.has_template(text):
            parts = (FUNCTION.sub("", part).strip(" ()") for part in text.split(","))
            names = (part.partition(".")[0] for part in parts)
            yield from ((f"{place}.{setting}", collection, name) for name in names if name)
    if isinstance(sort, str) and not templates.has_template(sort):
        for part in sort.split(","):
            if name := part.strip().lstrip("+-").partition(".")[0]:
                yield f"{place}.sort", collection, name


def _in_event_condition(text: str, place: str, collection: str) -> Iterator[Named]:
    for path in in_condition(text, on_event=True):
        if path[0] in RECORDS and len(path) > 1:
            yield place, collection, path[1]
        elif path[0] not in EVENT_NAMES:
            yield place, collection, path[0]


def _of_trigger(names: Iterable[tuple[str, Path]], collection: str) -> Iterator[Named]:
    for place, path in names:
        if len(path) > 2 and path[0] == "trigger" and path[1] in RECORDS:
            yield place, collection, path[2]
