"""Steps of workflows that extensions add.

A worker runs them as it runs requests and mails: with the rights of the workflow's owner, at least
once, under a key that stays the same. What a step writes to records is stored with its output, and
so exactly once.
"""

from __future__ import annotations

from functools import partial

from app.auth.principal import Principal
from app.context import trigger_depth
from app.context.trigger_depth import Chain
from app.extensions import jobs, registry
from app.extensions.collected import Collected
from app.extensions.registry import Handler, Kind
from app.jobs import JobError
from app.types import JSONObject
from app.web import serialization
from app.workflows.engine import external_steps
from app.workflows.language.definition import OWN_STEPS, Store

NOT_JSON = "{} must return values that can be written as JSON."


@registry.on_change
def register() -> None:
    """Make the steps of the loaded extensions known to workflows."""
    OWN_STEPS.clear()
    for name, (handler,) in registry.of(Kind.WORKFLOW_STEP).items():
        OWN_STEPS[name] = partial(_run, handler)


def _run(
    handler: Handler, by: Principal, input: JSONObject, key: str, instance_id: str, chain: Chain
) -> tuple[object, Store]:
    """Call a step's handler; returns its output, and what stores its writes. Raises Failed."""
    collected = Collected()

    def call() -> object:
        trigger_depth.chain.set(chain)
        seconds = external_steps.OWN_SECONDS
        output = jobs.call(handler, by, [input], collected, key, instance_id, seconds)
        try:
            return serialization.plain(output)
        except TypeError as error:
            raise JobError(NOT_JSON.format(handler.name)) from error

    try:
        output = jobs.within(handler, external_steps.OWN_SECONDS, call)
    except JobError as error:
        raise external_steps.Failed(str(error)) from error

    return output, collected.store
