"""The deliveries of events to webhooks, written as the events get their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.operator import types
from app.types import JSONMapping, JSONObject
from app.webhooks import outbox, queue
from app.webhooks.models import IS_OPERATORS, Webhook


@dataclass(frozen=True)
class Receiver:
    """A webhook, and what it is sent."""

    id: str
    is_paused: bool
    types: frozenset[str]
    collections: frozenset[str]

    def wants(self, event: JSONMapping) -> bool:
        if event["type"] not in self.types:
            return False
        is_record = event["type"].startswith(f"{types.RECORDS}.")
        return not is_record or event["data"]["collection"].lower() in self.collections


def content(event: JSONMapping) -> JSONObject:
    """An event as it is listed and sent."""
    at = clock.iso(event["at"])
    return {
        **{name: event[name] for name in ("id", "type", "account_id", "actor", "data")},
        "at": at,
    }


def write(events: Sequence[JSONMapping]) -> None:
    """Write the deliveries of numbered events, in the open transaction."""
    receivers = _receivers()
    for receiver in receivers:
        wanted = [event for event in events if receiver.wants(event)]
        rows = [_row(receiver, event) for event in wanted]
        if rows:
            outbox.hold(rows)
            queue.start_next(SYSTEM_ACCOUNT_ID, [(receiver.id, row["of_account"]) for row in rows])


def _row(receiver: Receiver, event: JSONMapping) -> JSONObject:
    text = orjson.dumps(content(event)).decode()
    order = {"of_account": event["account_id"], "event_number": event["number"]}
    row = outbox.row(SYSTEM_ACCOUNT_ID, receiver.id, event["type"], text, **order)
    return {**row, "depth": event["depth"]}


def _receivers() -> list[Receiver]:
    """The enabled webhooks, locked: what was sent to them waits with its result."""
    table: Any = Webhook.__table__
    query = sa.select(table).where(*IS_OPERATORS, table.c.enabled).order_by(table.c.id)
    return [
        Receiver(
            row.id,
            row.paused_at is not None,
            types.expand(row.types),
            frozenset(name.lower() for name in row.collections or ()),
        )
        for row in db.connection().execute(query.with_for_update())
    ]
