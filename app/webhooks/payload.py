"""What a webhook is told of a change (spec 6.2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from app import clock
from app.collections import masking
from app.events import RecordChanged
from app.webhooks.models import OPERATIONS

TEST_EVENT = "webhook.test"
EVENTS = (*(f"records.{operation}" for operation in OPERATIONS), TEST_EVENT)


def event_name(operation: str) -> str:
    """The event of an operation on records."""
    return f"records.{operation}"


def personal(definition: Any) -> frozenset[str]:
    """The fields of a collection that hold personal data."""
    found: frozenset[str] = definition.personal
    return found


def facts(event: RecordChanged, masked: frozenset[str]) -> dict[str, Any]:
    """What happened, with the values of some fields masked."""
    definition = event.definition
    told: dict[str, Any] = {
        "event": event_name(event.operation),
        "collection": definition.name,
        "record": _shown(definition, event.record, masked),
    }
    if event.operation != "create":
        told["previous"] = _shown(definition, event.previous, masked)
    return told


def test_facts(collection: str) -> dict[str, Any]:
    """What a test says."""
    return {"event": TEST_EVENT, "collection": collection, "record": {}}


def text(told: Mapping[str, Any], *, at: datetime, webhook_id: str, account_id: str) -> str:
    """The text that is sent."""
    about = {"timestamp": clock.iso(at), "webhook_id": webhook_id, "account_id": account_id}
    return orjson.dumps({**told, **about}).decode()


def _shown(
    definition: Any, row: Mapping[str, Any] | None, masked: frozenset[str]
) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        name: _value(field, row.get(name), name in masked)
        for name, field in definition.columns.items()
    }


def _value(field: Any, value: Any, masked: bool) -> Any:
    if value is None:
        return None
    shown = field.shown(value)
    return masking.masked(field, shown) if masked else shown
