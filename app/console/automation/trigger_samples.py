"""Sample data of a trigger, to run a workflow by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app import clock
from app.auth.principal import Principal
from app.collections import definitions
from app.ids import new_id
from app.types import JSONObject
from app.workflows.language import missing, used_names
from app.workflows.language.definition import Written, lists_in
from app.workflows.language.used_names import Path
from app.workflows.models import Trigger, Workflow

MAX_NAMES = 200  # that a sample is made of


def sample(workflow: Workflow, by: Principal) -> JSONObject:
    """What the steps may find in `trigger`, as far as the caller may view it."""
    trigger = workflow.trigger
    if trigger["type"] == Trigger.EVENT:
        return _event(trigger, by)
    if trigger["type"] == Trigger.SCHEDULE:
        return {"scheduled_for": clock.iso(clock.now()), "cron": trigger["cron"]}
    found: JSONObject = {}
    for _, path in zip(range(MAX_NAMES), _trigger_paths(workflow.steps), strict=False):
        _put(found, path)
    return found


def _event(trigger: Written, by: Principal) -> JSONObject:
    collection, event = trigger.get("collection"), trigger["event"]
    visible = missing.visible_fields(collection, by) if collection else None
    columns = definitions.get_current(collection).columns if collection and visible else {}
    values = {name: field.sample() for name, field in columns.items() if name in (visible or ())}
    values = values or {"id": new_id()}
    found: JSONObject = {"event": event, "collection": collection}
    found["record"] = None if event == "records.delete" else values
    return found if event == "records.create" else {**found, "previous": values}


def _trigger_paths(steps: Sequence[Written]) -> Iterator[Path]:
    for step in steps:
        for _, path in used_names.in_step(step, ""):
            if path[0] == "trigger" and len(path) > 1:
                yield path[1:]
        for inner in lists_in(step):
            yield from _trigger_paths(inner)


def _put(found: JSONObject, path: Path) -> None:
    for name in path[:-1]:
        inner = found.setdefault(name, {})
        if not isinstance(inner, dict):  # also used as a value itself
            inner = found[name] = {}
        found = inner
    found.setdefault(path[-1], "")
