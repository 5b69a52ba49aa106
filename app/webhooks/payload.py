"""The payload of a delivery."""

from __future__ import annotations

import re
from datetime import datetime

import orjson

from app import clock
from app.audit.security_log import reads
from app.collections import masking
from app.events import RecordChanged
from app.types import JSONMapping, JSONObject
from app.webhooks.models import OPERATIONS
from app.webhooks.visibility import View

TEST_EVENT = "webhook.test"
# The beginning as `facts` and `text` write it; avoids parsing the whole payload.
BEGINNING = re.compile(r'\{"event":"[\w.]+","collection":"(\w+)",', re.ASCII)
EVENTS = (*(f"records.{operation}" for operation in OPERATIONS), TEST_EVENT)


def event_name(operation: str) -> str:
    return f"records.{operation}"


def facts(event: RecordChanged, view: View) -> JSONObject:
    """The change as the webhook's owner may view it; hidden records are null."""
    content: JSONObject = {
        "event": event_name(event.operation),
        "collection": event.definition.name,
        "record": _visible_values(event, event.record, view),
    }
    if event.operation != "create":
        content["previous"] = _visible_values(event, event.previous, view)
    if event.is_restored:
        content["restored"] = True
    return content


def cut(content: JSONMapping) -> JSONObject:
    """The payload reduced to the ids of the records, if the whole would be too large."""
    ids = {
        name: {"id": content[name]["id"]} for name in ("record", "previous") if content.get(name)
    }
    return {**content, **ids, "truncated": True}


def cut_text(text: str) -> str:
    """The same for a payload's text; tests and events have nothing to cut."""
    content = orjson.loads(text)
    return (
        text
        if content.get("event", TEST_EVENT) == TEST_EVENT
        else orjson.dumps(cut(content)).decode()
    )


def collection_name(text: str) -> str:
    """The collection of a payload's text; empty if it has none."""
    match = BEGINNING.match(text)
    content = {"collection": match[1]} if match else orjson.loads(text)
    return str(content.get("collection") or "")


def beginnings(collection: str) -> list[str]:
    """The possible beginnings of payload texts for a collection."""
    names = map(event_name, OPERATIONS)
    return [f'{{"event":"{name}","collection":"{collection}",' for name in names]


def test_facts(collection: str) -> JSONObject:
    """The content of a test."""
    return {"event": TEST_EVENT, "collection": collection, "record": {}}


def text(content: JSONMapping, *, timestamp: datetime, webhook_id: str, account_id: str) -> str:
    """The JSON text to send."""
    metadata = {
        "timestamp": clock.iso(timestamp),
        "webhook_id": webhook_id,
        "account_id": account_id,
    }
    return orjson.dumps({**content, **metadata}).decode()


def _visible_values(event: RecordChanged, row: JSONMapping | None, view: View) -> JSONObject | None:
    access = view.access_to(event, row)
    if row is None or access is None:
        return None
    exposed = access.exposed - view.masked
    if exposed:
        with reads.by_path("webhook"):
            reads.note(event.definition, view.by, event.account_id, [row["id"]], exposed)
    values: JSONObject = {}
    for name, field in event.definition.columns.items():
        if name in access.readable:
            value = row.get(name)
            if value is not None:
                value = field.shown(value)
                value = masking.masked(field, value) if name in view.masked else value
            values[name] = value
    return values
