"""The status of each step of an instance, by its log, its position and its paths."""

from __future__ import annotations

from app.auth.principal import Principal
from app.console.automation.flow_diagram import StepState, targets
from app.workflows import instances
from app.workflows.instances import Instance
from app.workflows.language.definition import LOOP, Series
from app.workflows.models import ACTIVE, InstanceState

SKIPPED, NOT_RUN = "skipped", "not run"


def find(instance: Instance, series: Series, by: Principal) -> dict[str, StepState]:
    current, status = set((instance.current_step or "").split(", ")), instance.status
    logged = instances.step_statuses(instance.id, by=by)
    may_run = _may_run(series, current) if status != InstanceState.COMPLETED else set()
    states = {}
    for step in series.walk():
        log = logged.get(step.name)
        logged_status = log.status if log else None
        if any(one.name in current for inner in step.inner for one in inner.walk()):
            logged_status = InstanceState.RUNNING if status in ACTIVE else status
        elif (
            status in ACTIVE
            and step.name in current
            and logged_status in (None, InstanceState.COMPLETED)
        ):
            logged_status = status  # about to run, or to run again in a loop
        unlogged = NOT_RUN if step.name in may_run or status == InstanceState.CANCELLED else SKIPPED
        states[step.name] = StepState(logged_status or unlogged, log.times if log else 0)
    return states


def _may_run(series: Series, current: set[str]) -> set[str]:
    """The steps that can still run when the current ones are next, or all before the first."""
    if not any(step.name in current for step in series.walk()):
        return {step.name for step in series.walk()}
    inside = {
        name: {one.name for inner in step.inner for one in inner.walk()}
        for name, step in series.steps.items()
    }
    found = set[str]()
    pending = [name for name in series.steps if name in current or inside[name] & current]
    for name in pending:
        step = series.steps[name]
        found |= inside[name] if step.type == LOOP or name in current else set()
        for inner in step.inner:  # other branches may wait for theirs: they may all run
            found |= _may_run(inner, current)
    while pending:
        for _, target in targets(series.steps[pending.pop()]):
            if target is not None and target not in found:
                found |= {target, *inside[target]}
                pending.append(target)
    return found
