"""Starts an instance again: with the trigger data of one that has ended, and the current steps."""

from __future__ import annotations

from app import db
from app.auth.principal import Principal
from app.errors import Conflict
from app.workflows import instances, service
from app.workflows.instances import Instance
from app.workflows.models import ACTIVE


def is_possible(instance: Instance) -> bool:
    """Whether an instance has ended, and still has trigger data that the caller may see."""
    has_trigger = isinstance(instance.context.get("trigger"), dict)  # erasure removes it
    return has_trigger and instance.status not in ACTIVE and not instance.withheld


def run(instance_id: str, *, by: Principal) -> str:
    """Start a new instance; returns its id. Raises NotFound, Conflict, LimitReached."""
    with db.transaction():
        ended = instances.get(instance_id, by=by, limit=0)
        if not is_possible(ended):
            raise Conflict("This instance cannot run again.", error="not_repeatable")
        return service.trigger(
            ended.workflow_id,
            ended.context["trigger"],
            by=by,
            kind=ended.kind,
            holds_pii=ended.holds_pii,  # stays hidden from those who may not see it
        )
