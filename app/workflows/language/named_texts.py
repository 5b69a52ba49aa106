"""The texts of a workflow in which roles, groups and choices can be named, by their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.types import JSONMapping, JSONObject
from app.workflows.language.definition import ACTION, Written, lists_in

TRIGGER, CONDITION = "trigger.condition", "condition"


def find(trigger: JSONMapping, condition: str | None, steps: Sequence[Written]) -> dict[str, str]:
    """The conditions and filters, which may have templates, by place."""
    own = {TRIGGER: trigger.get("condition"), CONDITION: condition}
    found = {place: text for place, text in own.items() if isinstance(text, str)}
    return found | dict(_in_steps(steps))


def replaced(steps: Sequence[Written], texts: Mapping[str, str]) -> list[JSONObject]:
    """The steps with other texts at some places."""
    return [_replaced(step, texts) for step in steps]


def _replaced(step: Written, texts: Mapping[str, str]) -> JSONObject:
    place, result = f"steps.{step['name']}", dict(step)
    for name in ("condition", "expression"):
        if f"{place}.{name}" in texts:
            result[name] = texts[f"{place}.{name}"]
    if f"{place}.filter" in texts:
        result["config"] = {**step["config"], "filter": texts[f"{place}.filter"]}
    if "steps" in step and lists_in(step):
        result["steps"] = replaced(step["steps"], texts)
    if isinstance(step.get("branches"), list):
        result["branches"] = [replaced(steps, texts) for steps in step["branches"]]
    return result


def _in_steps(steps: Sequence[Written]) -> Iterator[tuple[str, str]]:
    for step in steps:
        config: Any = step.get("config") if step["type"] == ACTION else None
        named = {name: step.get(name) for name in ("condition", "expression")}
        named["filter"] = (config or {}).get("filter")
        for name, text in named.items():
            if isinstance(text, str):
                yield f"steps.{step['name']}.{name}", text
        for inner in lists_in(step):
            yield from _in_steps(inner)
