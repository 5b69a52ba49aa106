"""Warns about collections that workflows and hooks name but that do not exist yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from app import db
from app.collections.models import Collection
from app.errors import problem
from app.types import JSONObject
from app.workflows.language import templates
from app.workflows.language.definition import ACTION, WAIT_EVENT, Written, lists_in
from app.workflows.models import HOOK, Workflow

CODE = "collection_missing"


def warnings(workflows: Sequence[Workflow]) -> dict[str, list[JSONObject]]:
    """The warnings of each workflow, by its id."""
    named = {workflow.id: list(_named(workflow)) for workflow in workflows}
    keys = {name.lower() for places in named.values() for _, name in places}
    query = sa.select(Collection.name_key).where(Collection.name_key.in_(sorted(keys)))
    missing = keys - set(db.db.session.scalars(query)) if keys else keys
    return {
        id: [_warning(place, name) for place, name in places if name.lower() in missing]
        for id, places in named.items()
    }


def _warning(place: str, name: str) -> JSONObject:
    return problem(
        place, CODE, f"The collection “{name}” does not exist. Create it or correct the name."
    )


def _named(workflow: Workflow) -> Iterator[tuple[str, str]]:
    if workflow.trigger.get("collection"):
        yield "trigger.collection", workflow.trigger["collection"]
    if workflow.kind == HOOK:
        actions = [step for step in workflow.steps if step["type"] == ACTION]
        yield from _in_steps(actions, "actions")
    else:
        yield from _in_steps(workflow.steps, "steps")


def _in_steps(steps: Sequence[Written], place: str) -> Iterator[tuple[str, str]]:
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        is_action = step["type"] == ACTION
        settings = step["config"] if is_action else step
        name = settings.get("collection") if is_action or step["type"] == WAIT_EVENT else None
        if name and not templates.has_template(name):
            yield f"{path}.{'config.' if is_action else ''}collection", name
        lists = lists_in(step)
        for number, inner in enumerate(lists):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _in_steps(inner, f"{path}.{branch}")
