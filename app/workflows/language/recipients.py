"""Recipients of mails: addresses, or `{user}`, `{role}`, `{group}`, `{field}`, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.accounts.models import name_key
from app.types import JSONObject
from app.workflows.language import templates
from app.workflows.language.definition import Written, lists_in

USER, ROLE, GROUP, FIELD = "user", "role", "group", "field"
KINDS = (USER, ROLE, GROUP, FIELD)


def of_config(to: object) -> list[Any]:
    """The recipients that a `send_email` names."""
    return to if isinstance(to, list) else [to]


def named(
    steps: Sequence[Written], kind: str, place: str = "steps"
) -> Iterator[tuple[str, str, str]]:
    """The roles or groups that mails go to: the step's name, the place of the recipients, each."""
    for index, step in enumerate(steps):
        path = f"{place}[{index}]"
        for one in of_config((step.get("config") or {}).get("to")):
            value = one.get(kind) if isinstance(one, dict) else None
            if isinstance(value, str) and not templates.has_template(value):
                yield step["name"], f"{path}.config.to", value
        for number, inner in enumerate(lists_in(step)):
            branch = "steps" if "steps" in step else f"branches[{number}]"
            yield from named(inner, kind, f"{path}.{branch}")


def renamed(steps: Sequence[Written], kind: str, former: str, new: str) -> list[JSONObject]:
    """The steps with another name of a role or group among the recipients of mails."""

    def followed(one: Any) -> Any:
        if isinstance(one, dict):
            return {kind: new} if is_same(one.get(kind), former) else one
        return [followed(each) for each in one] if isinstance(one, list) else one

    results = []
    for step in steps:
        result, config = dict(step), step.get("config")
        if isinstance(config, dict) and "to" in config:
            result["config"] = {**config, "to": followed(config["to"])}
        if "steps" in step and lists_in(step):
            result["steps"] = renamed(step["steps"], kind, former, new)
        if isinstance(step.get("branches"), list):
            result["branches"] = [renamed(inner, kind, former, new) for inner in step["branches"]]
        results.append(result)
    return results


def is_same(value: object, name: str) -> bool:
    """Whether a recipient's value is this name, however it is written."""
    return isinstance(value, str) and name_key(value) == name_key(name)
