"""Hooks, the earlier form of workflows: a list of actions, stored and run as a workflow's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from app.auth.principal import Principal
from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.workflows import instances, service
from app.workflows.instances import Instance, InstanceFilter
from app.workflows.language import checks, step_headers
from app.workflows.language.definition import ACTION, ACTIONS, CONDITION
from app.workflows.language.expressions import AvailableNames
from app.workflows.models import HOOK, InstanceState, Trigger, Workflow
from app.workflows.triggers import matching, schedules

MAX_ACTIONS = 20
CONDITION_STEP = "condition"
TRIGGERS = (Trigger.EVENT, Trigger.SCHEDULE, Trigger.MANUAL)
Body = JSONMapping


class ExecutionState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True)
class Execution:
    """An instance of a hook, as its API shows it."""

    id: str
    hook_id: str
    trigger_type: str
    status: ExecutionState
    actions_executed: int
    error_message: str | None
    duration_ms: int | None
    execution_context: JSONObject | None
    executed_at: datetime


def create(body: Body, *, by: Principal, id: str | None = None) -> Workflow:
    """Create a hook. Raises InvalidValues, Conflict."""
    service.refuse_key(by)
    return service.create(_to_workflow(body, None), by=by, kind=HOOK, id=id)


def change(hook_id: str, body: Body, *, by: Principal) -> Workflow:
    """Change a hook; omitted properties keep their values.

    Only sending actions changes the owner. Raises NotFound, InvalidValues, Forbidden.
    """
    service.refuse_key(by)
    sends_actions = "actions" in body
    # DNS look-ups happen here; the transaction checks everything again without them.
    _raise_problems(_parts(body, service.get(hook_id, by=by, kind=HOOK))[1])
    with service.changing(hook_id, by, HOOK) as current:
        values = _to_workflow(body, current)
        return service.change(hook_id, values, by=by, kind=HOOK, takes_over=sends_actions)


def as_workflow(body: Body) -> JSONObject:
    """The workflow that does what a new hook would. Raises InvalidValues."""
    values = _to_workflow(body, None)
    condition, trigger = values.pop("condition"), values["trigger"]
    if condition and trigger.get("type") == Trigger.EVENT:
        if trigger.get("condition"):
            condition = f"({trigger['condition']}) && ({condition})"
        values["trigger"] = {**trigger, "condition": condition}
    return values


def preview(body: Body, current: Workflow | None, *, by: Principal) -> Workflow:
    """The hook that saving the body would store. Raises InvalidValues."""
    return service.preview(_to_workflow(body, current), current, by=by, kind=HOOK)


def executions(
    hook_id: str, skip: int, limit: int, *, by: Principal
) -> tuple[list[Execution], int]:
    """The executions of a hook, newest first, and the total."""
    hook = service.get(hook_id, by=by, kind=HOOK)
    rows, total = instances.page(InstanceFilter(workflow_id=hook.id), skip, limit, by=by)
    return [_execution(row) for row in rows], total


def list_actions(hook: Workflow) -> list[JSONObject]:
    """The actions of a hook, with masked headers."""
    steps = [step for step in step_headers.masked(hook.steps) if step["type"] == ACTION]
    return [{"type": step["action_type"], "config": step["config"]} for step in steps]


def times(hooks: Sequence[Workflow]) -> dict[str, tuple[datetime | None, datetime | None]]:
    """The last and the next scheduled time of each hook, by id."""
    result: dict[str, tuple[datetime | None, datetime | None]] = {}
    for account_id in {hook.account_id for hook in hooks}:
        ids = [hook.id for hook in hooks if hook.account_id == account_id]
        for id, row in schedules.times(account_id, ids).items():
            result[id] = (row.last_at, row.next_at)
    return result


def _to_workflow(body: Body, current: Workflow | None) -> JSONObject:
    """A hook as a workflow: a condition, then its actions."""
    values, problems = _parts(body, current)
    _raise_problems(problems)
    return values


def _raise_problems(problems: list[Any]) -> None:
    if problems:
        raise InvalidValues(problems)


def _parts(body: Body, current: Workflow | None) -> tuple[JSONObject, list[object]]:
    values, problems = {k: v for k, v in body.items() if k != "actions"}, []
    if "trigger" in values:
        values["trigger"] = matching.normal(values["trigger"])
        problems += matching.problems(values["trigger"], TRIGGERS)
    trigger = values.get("trigger") or (current.trigger if current else {})
    condition = values.get("condition", current.condition if current else None) or None
    is_event = trigger.get("type") == Trigger.EVENT
    if condition:
        names = AvailableNames()
        names = checks.event_names(trigger, names) if is_event else names
        problems += checks.condition_problems(condition, CONDITION_STEP, names)
    actions = body.get("actions", list_actions(current) if current else [])
    stored = current.steps if current else []
    steps, step_problems = _steps(actions, None if is_event else condition, stored)
    return {**values, "condition": condition, "steps": steps}, problems + step_problems


def _steps(
    actions: Sequence[object], condition: str | None, stored: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    steps = [_step(action, index) for index, action in enumerate(actions)]
    problems = [
        problem(f"actions[{index}].type", "type_invalid", f"One of: {', '.join(ACTIONS)}.")
        for index, step in enumerate(steps)
        if not isinstance(step["action_type"], str) or step["action_type"] not in ACTIONS
    ]
    if len(actions) > MAX_ACTIONS:
        message = f"A hook has at most {MAX_ACTIONS} actions."
        problems.append(problem("actions", "too_long", message))
    if not problems:
        for problem_ in checks.problems(steps) or step_headers.problems(steps, stored):
            place = problem_["field"].removeprefix("steps")
            problems.append({**problem_, "field": f"actions{place}"})
    if condition and steps:
        condition_step = {"name": CONDITION_STEP, "type": CONDITION, "expression": condition}
        steps = [{**condition_step, "on_true": steps[0]["name"], "on_false": None}, *steps]
    return steps, problems


def _step(action: object, index: int) -> JSONObject:
    properties = dict(action) if isinstance(action, Mapping) else {}
    kind = properties.pop("type", None)
    kind = properties.pop("action_type", None) or kind
    config = properties.pop("config", None)
    base = {"name": f"action_{index + 1}", "type": ACTION}
    return {**base, "action_type": kind, "config": properties if config is None else config}


def _execution(instance: Instance) -> Execution:
    done = [name for name in instance.done if name != CONDITION_STEP]
    started, completed = instance.started_at, instance.completed_at
    match instance.status:
        case InstanceState.COMPLETED:
            status = ExecutionState.SUCCESS
        case InstanceState.FAILED if done:
            status = ExecutionState.PARTIAL
        case InstanceState.CANCELLED:
            status = ExecutionState.FAILED
        case unchanged:
            status = ExecutionState(unchanged)
    return Execution(
        id=instance.id,
        hook_id=instance.workflow_id,
        trigger_type=instance.trigger_type,
        status=status,
        actions_executed=len(done),
        error_message=instance.error_message,
        duration_ms=round((completed - started).total_seconds() * 1000)
        if started and completed
        else None,
        execution_context=instance.context or None,
        executed_at=instance.created_at,
    )
