"""Workflows: definitions, triggers, instances."""

from __future__ import annotations

from app.web.feature import Feature, Routes
from app.workflows import dispatch, erasure, purge, service, uses
from app.workflows.triggers import account_events, record_events


def routes() -> Routes:
    """Import the routes."""
    from app.workflows.routes import hooks, instances, workflows

    return Routes(
        api=(workflows.blueprint, workflows.callers, instances.all_instances, hooks.blueprint)
    )


FEATURE = Feature(
    routes=routes,
    jobs=(dispatch, purge),
    subscribers=(erasure, service, account_events, record_events, uses),
)
