"""The payload of a delivery (spec 6.2)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import orjson

from app import clock
from app.collections import masking
from app.events import RecordChanged
from app.types import JSONMapping, JSONObject
from app.webhooks.models import OPERATIONS
from app.webhooks.visibility import Sight

TEST_EVENT = "webhook.test"
# As `facts` and `text` have it: what comes first need not be parsed to its end.
BEGINNING = re.compile(r'\{"event":"[\w.]+","collection":"(\w+)",', re.ASCII)
EVENTS = (*(f"records.{operation}" for operation in OPERATIONS), TEST_EVENT)


def event_name(operation: str) -> str:
    """The event of a record operation."""
    return f"records.{operation}"


def facts(event: RecordChanged, sight: Sight) -> JSONObject:
    """The change as the webhook's owner may view it; hidden records are null."""
    shown: JSONObject = {
        "event": event_name(event.operation),
        "collection": event.definition.name,
        "record": _shown(event, event.record, sight),
    }
    if event.operation != "create":
        shown["previous"] = _shown(event, event.previous, sight)
    return shown


def cut(shown: JSONMapping) -> JSONObject:
    """The payload reduced to the ids of the records, if the whole would be too large."""
    ids = {name: {"id": shown[name]["id"]} for name in ("record", "previous") if shown.get(name)}
    return {**shown, **ids, "truncated": True}


def cut_text(text: str) -> str:
    """The same for a payload's text; tests have nothing to cut."""
    told = orjson.loads(text)
    return text if told["event"] == TEST_EVENT else orjson.dumps(cut(told)).decode()


def collection_of(text: str) -> str:
    """The collection of a payload's text; empty if it has none."""
    found = BEGINNING.match(text)
    told = {"collection": found[1]} if found else orjson.loads(text)
    return str(told.get("collection") or "")


def beginnings(collection: str) -> list[str]:
    """The possible beginnings of payload texts for a collection."""
    names = map(event_name, OPERATIONS)
    return [f'{{"event":"{name}","collection":"{collection}",' for name in names]


def test_facts(collection: str) -> JSONObject:
    """The content of a test."""
    return {"event": TEST_EVENT, "collection": collection, "record": {}}


def text(told: JSONMapping, *, at: datetime, webhook_id: str, account_id: str) -> str:
    """The JSON text to send."""
    about = {"timestamp": clock.iso(at), "webhook_id": webhook_id, "account_id": account_id}
    return orjson.dumps({**told, **about}).decode()


def _shown(event: RecordChanged, row: JSONMapping | None, sight: Sight) -> JSONObject | None:
    access = sight.access_to(event, row)
    if row is None or access is None:
        return None
    return {
        name: _value(field, row.get(name), name in sight.masked)
        for name, field in event.definition.columns.items()
        if name in access.readable
    }


def _value(field: Any, value: object, masked: bool) -> object:
    if value is None:
        return None
    shown = field.shown(value)
    return masking.masked(field, shown) if masked else shown
