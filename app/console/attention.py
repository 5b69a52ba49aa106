"""What fails: webhooks, and workflows with the number of their failed instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SCANNED = 100
"""The newest failed instances that are grouped."""


@dataclass
class FailedWorkflow:
    """The failed instances of one workflow, the newest of them first."""

    latest: Any
    count: int = 0


def by_workflow(instances: Iterable[Any], limit: int) -> Sequence[FailedWorkflow]:
    """Failed instances, newest first, grouped by their workflow."""
    groups: dict[tuple[str, str], FailedWorkflow] = {}
    for instance in instances:
        key = (instance.account_id, instance.workflow_id)
        groups.setdefault(key, FailedWorkflow(instance)).count += 1
    return list(groups.values())[:limit]
