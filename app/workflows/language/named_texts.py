"""The texts of a workflow in which roles, groups and choices can be named, by their places.

A change that names roles that do not exist, or impossible choices, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.accounts import names
from app.collections import definitions, expression_names
from app.errors import NotFound, problem
from app.rules import composed
from app.rules.named import ROLE
from app.types import JSONMapping, JSONObject
from app.workflows.language import recipients, templates
from app.workflows.language.definition import ACTION, FOR_EACH, WAIT_EVENT, Written, lists_in
from app.workflows.language.expressions import ROOTS
from app.workflows.models import Workflow

TRIGGER, CONDITION = "trigger.condition", "condition"


def find(trigger: JSONMapping, condition: str | None, steps: Sequence[Written]) -> dict[str, str]:
    """The conditions and filters, which may have templates, by place."""
    own = {TRIGGER: trigger.get("condition"), CONDITION: condition}
    found = {place: text for place, text in own.items() if isinstance(text, str)}
    return found | dict(_in_steps(steps))


def collections(trigger: JSONMapping, steps: Sequence[Written]) -> dict[str, object]:
    """The name of the collection that each text is about, by place; None for any."""
    of_event = trigger.get("collection")
    in_steps = {key: name for key, (_, name) in _collections_in_steps(steps, "steps")}
    return {TRIGGER: of_event, CONDITION: of_event, **in_steps}


def replaced(steps: Sequence[Written], texts: Mapping[str, str]) -> list[JSONObject]:
    """The steps with other texts at some places."""
    results = []
    for step in steps:
        place, result = f"steps.{step['name']}", dict(step)
        for name in ("condition", "expression"):
            if f"{place}.{name}" in texts:
                result[name] = texts[f"{place}.{name}"]
        if f"{place}.filter" in texts and step["type"] == FOR_EACH:
            result["filter"] = texts[f"{place}.filter"]
        elif f"{place}.filter" in texts:
            result["config"] = {**step["config"], "filter": texts[f"{place}.filter"]}
        if "steps" in step and lists_in(step):
            result["steps"] = replaced(step["steps"], texts)
        if isinstance(step.get("branches"), list):
            result["branches"] = [replaced(inner, texts) for inner in step["branches"]]
        results.append(result)
    return results


def _in_steps(steps: Sequence[Written]) -> Iterator[tuple[str, str]]:
    for step in steps:
        config: Any = step.get("config") if step["type"] == ACTION else step
        named = {name: step.get(name) for name in ("condition", "expression")}
        named["filter"] = (config or {}).get("filter")
        for name, text in named.items():
            if isinstance(text, str):
                yield f"steps.{step['name']}.{name}", text
        for inner in lists_in(step):
            yield from _in_steps(inner)


def problems(values: JSONMapping, current: Workflow | None) -> list[JSONObject]:
    """The roles that do not exist and the impossible choices that a change names.

    Texts that the stored workflow has already are left out.
    """
    trigger, steps = values.get("trigger", {}), values.get("steps", ())
    stored = find(current.trigger, current.condition, current.steps) if current else {}
    former = set(stored.values())
    trigger_of_condition = trigger or (current.trigger if current else {})
    # The place of each text as the API names it, and the collection that it is about.
    about = {
        TRIGGER: (TRIGGER, trigger.get("collection")),
        CONDITION: (CONDITION, trigger_of_condition.get("collection")),
        **dict(_collections_in_steps(steps, "steps")),
    }
    result = []
    for key, text in find(trigger, values.get("condition"), steps).items():
        place, collection = about.get(key, (key, None))
        if text in former:
            continue
        definition = None
        if isinstance(collection, str) and not templates.has_template(collection):
            with suppress(NotFound):  # it may be created later
                definition = definitions.get_current(collection)
        found = expression_names.problem_in(text, definition, roots=ROOTS)
        result += [found | {"field": place}] if found else []
    named = {role: place for _, place, role in recipients.named(steps, ROLE)}
    for role in sorted(names.unknown(ROLE, {composed(role) for role in named})):
        message = f"There is no role {role[:80]}."
        result.append(problem(named.get(role, "steps"), "unknown_role", message))
    return result


def _collections_in_steps(
    steps: Sequence[Written], place: str
) -> Iterator[tuple[str, tuple[str, object]]]:
    for index, step in enumerate(steps):
        name, path = f"steps.{step['name']}", f"{place}[{index}]"
        if step["type"] == WAIT_EVENT:
            yield f"{name}.condition", (f"{path}.condition", step.get("collection"))
        elif step["type"] == FOR_EACH:
            yield f"{name}.filter", (f"{path}.filter", step.get("collection"))
        elif step["type"] == ACTION:
            yield f"{name}.filter", (f"{path}.config.filter", step["config"].get("collection"))
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from _collections_in_steps(inner, f"{path}.{branch}")
