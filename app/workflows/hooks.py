"""Hooks: short workflows. They are stored and run as a workflow's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from app.auth.principal import Principal
from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.workflows import instances, service
from app.workflows.language import checks, step_headers
from app.workflows.language.definition import ACTION, ACTIONS, CONDITION
from app.workflows.language.expressions import Known
from app.workflows.models import (
    CANCELLED,
    COMPLETED,
    EVENT,
    FAILED,
    HOOK,
    MANUAL,
    SCHEDULE,
    Workflow,
)
from app.workflows.triggers import matching, schedules

MOST_ACTIONS = 20
ASKED = "condition"
SUCCESS, PARTIAL = "success", "partial"
Body = JSONMapping


def create(body: Body, *, by: Principal, id: str | None = None) -> Workflow:
    """Create a hook. Raises InvalidValues, Conflict."""
    by.refuse_key(service.NO_KEYS)
    return service.create(_translated(body, None), by=by, kind=HOOK, id=id)


def change(hook_id: str, body: Body, *, by: Principal) -> Workflow:
    """Change a hook; omitted properties keep their values.

    Only sending actions changes the owner. Raises NotFound, InvalidValues, Forbidden.
    """
    by.refuse_key(service.NO_KEYS)
    sent = "actions" in body
    # Out here names of hosts are looked up; in the transaction everything is looked at again.
    _refuse(_parts(body, service.get(hook_id, by=by, kind=HOOK))[1])
    with service.changing(hook_id, by, HOOK) as before:
        values = _translated(body, before)
        return service.change(hook_id, values, by=by, kind=HOOK, takes_over=sent)


def executions(hook_id: str, skip: int, limit: int, *, by: Principal) -> tuple[list[Any], int]:
    """The executions of a hook, newest first, and the total."""
    hook = service.get(hook_id, by=by, kind=HOOK)
    found, total = instances.page({"workflow_id": hook.id}, skip, limit, by=by)
    return [_execution(one) for one in found], total


def actions_of(hook: Workflow) -> list[JSONObject]:
    """The actions of a hook, with masked headers."""
    steps = [step for step in step_headers.masked(hook.steps) if step["type"] == ACTION]
    return [{"type": step["action_type"], "config": step["config"]} for step in steps]


def times(hooks: Sequence[Workflow]) -> dict[str, tuple[datetime | None, datetime | None]]:
    """The last and the next scheduled time of each hook, by id."""
    found: dict[str, tuple[datetime | None, datetime | None]] = {}
    for account_id in {one.account_id for one in hooks}:
        ids = [one.id for one in hooks if one.account_id == account_id]
        for id, row in schedules.times(account_id, ids).items():
            found[id] = (row.last_at, row.next_at)
    return found


def _translated(body: Body, before: Workflow | None) -> JSONObject:
    """A hook as a workflow: a condition, then its actions."""
    values, found = _parts(body, before)
    _refuse(found)
    return values


def _refuse(found: list[Any]) -> None:
    if found:
        raise InvalidValues(found)


def _parts(body: Body, before: Workflow | None) -> tuple[JSONObject, list[object]]:
    values, found = {k: v for k, v in body.items() if k != "actions"}, []
    if "trigger" in values:
        values["trigger"] = matching.normal(values["trigger"])
        allowed = (EVENT, SCHEDULE, MANUAL)
        found += matching.problems(values["trigger"], allowed)
    trigger = values.get("trigger") or (before.trigger if before else {})
    condition = values.get("condition", before.condition if before else None) or None
    of_event = trigger.get("type") == EVENT
    if condition:
        known = Known(of_event=of_event)
        found += checks.condition_problems(condition, ASKED, known)
    actions = body.get("actions", actions_of(before) if before else [])
    stored = before.steps if before else []
    steps, wrong = _steps(actions, None if of_event else condition, stored)
    return {**values, "condition": condition, "steps": steps}, found + wrong


def _steps(
    actions: Sequence[object], condition: str | None, stored: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    steps = [_step(action, index) for index, action in enumerate(actions)]
    found = [
        problem(f"actions[{index}].type", "type_invalid", f"One of: {', '.join(ACTIONS)}.")
        for index, step in enumerate(steps)
        if not isinstance(step["action_type"], str) or step["action_type"] not in ACTIONS
    ]
    if len(actions) > MOST_ACTIONS:
        message = f"A hook has at most {MOST_ACTIONS} actions."
        found.append(problem("actions", "too_long", message))
    if not found:
        for one in checks.problems(steps) or step_headers.problems(steps, stored):
            place = one["field"].removeprefix("steps")
            found.append({**one, "field": f"actions{place}"})
    if condition and steps:
        asked = {"name": ASKED, "type": CONDITION, "expression": condition}
        steps = [{**asked, "on_true": steps[0]["name"], "on_false": None}, *steps]
    return steps, found


def _step(action: object, index: int) -> JSONObject:
    given = dict(action) if isinstance(action, Mapping) else {}
    kind = given.pop("type", None)
    kind = given.pop("action_type", None) or kind
    config = given.pop("config", None)
    about = {"name": f"action_{index + 1}", "type": ACTION}
    return {**about, "action_type": kind, "config": given if config is None else config}


def _execution(instance: JSONMapping) -> JSONObject:
    done = [name for name in instance["done"] if name != ASKED]
    states = {COMPLETED: SUCCESS, FAILED: PARTIAL if done else FAILED, CANCELLED: FAILED}
    begun, ended = instance["started_at"], instance["completed_at"]
    duration = round((ended - begun).total_seconds() * 1000) if begun and ended else None
    return {
        "id": instance["id"],
        "hook_id": instance["workflow_id"],
        "trigger_type": instance["trigger_type"],
        "status": states.get(instance["status"], instance["status"]),
        "actions_executed": len(done),
        "error_message": instance["error_message"],
        "duration_ms": duration,
        "execution_context": instance["context"] or None,
        "executed_at": instance["created_at"],
    }
