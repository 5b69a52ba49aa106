"""Webhooks and workflows."""

from __future__ import annotations

from app.console.automation import (
    deliveries,
    webhooks,
    workflow_instances,
    workflow_steps,
    workflows,
)

PAGES = (
    deliveries,
    webhooks,
    workflow_instances,
    workflow_steps,
    workflows,
)
