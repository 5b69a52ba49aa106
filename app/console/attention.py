"""What fails: webhooks, and workflows with the number of their failed instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app import clock
from app.auth.principal import Principal
from app.console.shell import lists
from app.context import shown_accounts
from app.webhooks import log, resend
from app.webhooks import service as webhooks
from app.webhooks.models import Webhook
from app.webhooks.resend import Selection, Undelivered
from app.workflows import instances

MAX_SCANNED = 100
"""The newest failed instances that are grouped."""


@dataclass
class FailedWorkflow:
    """The failed instances of one workflow, the newest of them first."""

    latest: Any
    reason: str | None
    """Why the newest failed."""
    count: int = 0


@dataclass(frozen=True)
class FailingWebhook:
    """A webhook that fails or is disabled, and how many deliveries it did not receive."""

    webhook: Webhook
    undelivered: Undelivered
    reason: str | int | None
    """The error or the status of the newest attempt that failed."""


def failing_webhooks(limit: int, *, by: Principal) -> Sequence[FailingWebhook]:
    """Failing and disabled webhooks, longest failing first."""
    found, everything = webhooks.failing(limit, by=by), Selection(resend.EARLIEST, clock.now())
    numbers = resend.count_undelivered(found, everything, lists.MAX_COUNTED)
    reasons = log.latest_failures(found)
    return [
        FailingWebhook(webhook, number, reasons.get(webhook.id))
        for webhook, number in zip(found, numbers, strict=True)
    ]


def by_workflow(failed: Iterable[Any], limit: int, *, by: Principal) -> Sequence[FailedWorkflow]:
    """Failed instances, newest first, grouped by their workflow."""
    groups: dict[tuple[str, str], FailedWorkflow] = {}
    for instance in failed:
        key = (instance.account_id, instance.workflow_id)
        if key not in groups:
            shown_accounts.note(instance.account_id)
            reason = instances.visible_error(instance, by)
            groups[key] = FailedWorkflow(instance, reason)
        groups[key].count += 1
    return list(groups.values())[:limit]
