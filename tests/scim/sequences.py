"""Sequences of requests with the answers that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.scim.conftest import Directory

PATCH_OP = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"


@dataclass(frozen=True)
class Step:
    """A request, and what its answer must have; `{name}` stands for the id of an earlier answer."""

    method: str
    path: str
    body: Any = None
    status: int = 200
    answer: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    name: str = ""


def patch(*operations: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a PATCH."""
    return {"schemas": [PATCH_OP], "Operations": list(operations)}


def run(directory: Directory, steps: Sequence[Step]) -> dict[str, str]:
    """Send the requests in order; returns the ids by name."""
    ids: dict[str, str] = {}
    for number, step in enumerate(steps):
        answer = directory(step.method, fill(step.path, ids), fill(step.body, ids))
        assert answer.status_code == step.status, (number, step, answer.text)
        if answer.status_code != 204:
            assert answer.content_type == "application/scim+json", (number, step)
        check(answer.json or {}, fill(step.answer, ids), (number, step, answer.text))
        assert not set(step.absent) & set(answer.json or {}), (number, step, answer.text)
        if step.name:
            ids[step.name] = answer.json["id"]
    return ids


def fill(template: Any, ids: Mapping[str, str]) -> Any:
    """Put the ids into a template."""
    if isinstance(template, Mapping):
        return {name: fill(value, ids) for name, value in template.items()}
    if isinstance(template, list):
        return [fill(item, ids) for item in template]
    if isinstance(template, str):
        for name, id in ids.items():
            template = template.replace(f"{{{name}}}", id)
    return template


def check(actual: Any, expected: Any, where: object) -> None:
    """Compare what is expected; the answer may have more."""
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            assert name in actual, (name, where)
            check(actual[name], value, where)
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for one, other in zip(actual, expected, strict=True):
            check(one, other, where)
    else:
        assert actual == expected, where
