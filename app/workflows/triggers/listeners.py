"""Caches which events start an account's workflows or may be awaited.

The cache uses the version of the account's webhooks, which every record write already checks
(`app/webhooks/outbox.py`): a write without listeners costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db
from app.db import versioned_cache
from app.webhooks import outbox
from app.workflows.models import EVENT, VERSIONS, Workflow


@dataclass(frozen=True)
class Listener:
    """A workflow that an event starts."""

    account_id: str
    id: str
    kind: str
    version: int
    conditions: Sequence[str]
    owner_id: str
    owner_home: str


@dataclass(frozen=True)
class Listeners:
    """The listeners of an account, by event and collection in lower case ("" for any)."""

    started: Mapping[tuple[str, str], Sequence[Listener]]
    awaited: frozenset[str]

    def started_by(self, event: str, collection: str) -> list[Listener]:
        """The workflows that an event starts."""
        keys = ((event, collection), (event, ""))
        return [listener for key in keys for listener in self.started.get(key, ())]

    def may_await(self, event: str, collection: str) -> bool:
        """Whether any instance may wait for an event."""
        return event in self.awaited or f"{event} {collection}" in self.awaited


def for_account(account_id: str) -> Listeners:
    """The listeners of an account in the open transaction."""
    version = outbox.checked_version(account_id)
    cache = versioned_cache.cache("workflow_listeners")
    cached = cache.get(account_id, lambda: None)
    if cached is None or cached[0] != version:
        cached = (version, _load(account_id))
        cache.put(account_id, cached)
    listeners: Listeners = cached[1]
    return listeners


def _load(account_id: str) -> Listeners:
    conditions = (
        Workflow.account_id == account_id,
        Workflow.enabled,
        Workflow.trigger_type == EVENT,
    )
    table: Any = Workflow.__table__
    started: dict[tuple[str, str], list[Listener]] = {}
    for row in db.connection().execute(sa.select(table).where(*conditions).order_by(table.c.id)):
        conditions_text = tuple(filter(None, (row.condition, row.trigger.get("condition"))))
        identity = (row.account_id, row.id, row.kind, row.version)
        listener = Listener(*identity, conditions_text, row.owner_id, row.owner_home)
        key = (row.trigger["event"], row.trigger.get("collection", "").lower())
        started.setdefault(key, []).append(listener)
    awaits_query = sa.select(VERSIONS.c.awaits).where(VERSIONS.c.account_id == account_id)
    awaited = {
        awaited_event
        for row in db.connection().execute(awaits_query)
        for awaited_event in row.awaits
    }
    return Listeners(started, frozenset(awaited))
