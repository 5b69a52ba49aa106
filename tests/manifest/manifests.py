"""Calls of `/manifest` for tests."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from werkzeug.test import TestResponse

from tests.builders import Caller


def planned(root: Caller, text: str) -> Any:
    answer = root.post("manifest/plan", {"yaml": dedent(text)})
    assert answer.status_code == 200, answer.json
    return answer.json


def apply(root: Caller, text: str, plan_hash: str | None = None) -> TestResponse:
    text = dedent(text)
    plan_hash = plan_hash or planned(root, text)["plan_hash"]
    return root.post("manifest/apply", {"yaml": text, "plan_hash": plan_hash})


def applied(root: Caller, text: str) -> Any:
    answer = apply(root, text)
    assert answer.status_code == 200, answer.json
    return answer.json


def exported(root: Caller, query: str = "") -> Any:
    answer = root.get(f"manifest/export{query}")
    assert answer.status_code == 200, answer.json
    return answer.json


def shape(plan: Any) -> list[tuple[str, str, str]]:
    return [(one["action"], one["kind"], one["name"]) for one in plan["operations"]]
