"""Refuses conditions and filters that name roles that do not exist, or impossible choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from app.collections import definitions, expression_names
from app.collections.definitions import Definition
from app.errors import NotFound
from app.types import JSONMapping, JSONObject
from app.workflows.language import named_texts, templates
from app.workflows.language.definition import ACTION, WAIT_EVENT, Written, lists_in
from app.workflows.models import Workflow


def find(values: JSONMapping, current: Workflow | None) -> list[JSONObject]:
    """The problems of what is sent, but for texts that the stored workflow has already."""
    trigger = values.get("trigger", {})
    steps = values.get("steps", ())
    stored = current and named_texts.find(current.trigger, current.condition, current.steps)
    former = {*(stored or {}).values()}
    of_trigger = trigger or (current.trigger if current else {})
    # The place of each text as the API names it, and the collection that it is about.
    about = {
        named_texts.TRIGGER: (named_texts.TRIGGER, trigger.get("collection")),
        named_texts.CONDITION: (named_texts.CONDITION, of_trigger.get("collection")),
        **dict(_in_steps(steps, "steps")),
    }
    texts = named_texts.find(trigger, values.get("condition"), steps)
    problems = []
    for key, text in texts.items():
        place, collection = about.get(key, (key, None))
        if text not in former:
            of = _definition(collection)
            found = expression_names.problem_in(text, of, roots=("record", "previous"))
            problems += [found | {"field": place}] if found else []
    return problems


def _in_steps(steps: Sequence[Written], place: str) -> Iterator[tuple[str, tuple[str, object]]]:
    for index, step in enumerate(steps):
        name, path = f"steps.{step['name']}", f"{place}[{index}]"
        if step["type"] == WAIT_EVENT:
            yield f"{name}.condition", (f"{path}.condition", step.get("collection"))
        elif step["type"] == ACTION:
            yield f"{name}.filter", (f"{path}.config.filter", step["config"].get("collection"))
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _in_steps(inner, f"{path}.{branch}")


def _definition(name: object) -> Definition | None:
    if isinstance(name, str) and not templates.has_template(name):
        with suppress(NotFound):  # it may be created later
            return definitions.get_current(name)
    return None
