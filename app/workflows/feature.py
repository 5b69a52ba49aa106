"""Workflows: definitions, triggers, instances."""

from __future__ import annotations

from app.web.feature import Feature
from app.workflows import dispatch, erasure, purge, service, uses
from app.workflows.routes import hooks, instances, workflows
from app.workflows.triggers import record_events

FEATURE = Feature(
    api=(workflows.blueprint, workflows.callers, instances.all_instances, hooks.blueprint),
    jobs=(dispatch, purge),
    subscribers=(erasure, service, record_events, uses),
)
