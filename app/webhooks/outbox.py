"""A change's deliveries are written in the change's own transaction.

So there is no change without them, and none of them for a change that was rolled back. Which
webhooks an account has is cached under the version of its `webhook_versions` row. A write has that
version checked together with its other stamps, and pays for webhooks only where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import chain, clock, db, events, jobs, stamps
from app.database_clock import database_now
from app.ids import new_id
from app.stamps import Stamp
from app.webhooks import filters, payload
from app.webhooks.models import DELIVERIES, Webhook, WebhookVersion

CHECKED = "webhooks.checked"


@dataclass(frozen=True)
class Listener:
    """What the outbox must know of a webhook."""

    id: str
    filter: str | None
    include_pii: bool


@dataclass(frozen=True)
class Listeners:
    """The enabled webhooks of an account, by collection (in lower case) and operation."""

    stamp: Stamp
    of: Mapping[tuple[str, str], Sequence[Listener]]


def stamps_of(account_id: str | None) -> list[Stamp]:
    """What the open transaction is about to check, so that changes of this account can be told."""
    if account_id is None:
        return []
    listeners = _cached(account_id)
    db.notes().setdefault(CHECKED, {})[account_id] = listeners
    return [listeners.stamp]


def checked_version(account_id: str) -> int | None:
    """The version of an account's listeners that the open transaction has checked."""
    return _checked(account_id).stamp.version


@events.subscribe(events.RecordChanged)
def note(event: events.RecordChanged) -> None:
    """Write the deliveries of a change, at the end of its transaction."""
    key = (event.definition.name.lower(), event.operation)
    listeners = _checked(event.account_id).of.get(key, ())
    # Values as they would be shown, once for all webhooks that mask alike.
    told: dict[bool, dict[str, Any]] = {}
    personal = payload.personal(event.definition) if listeners else frozenset()
    for listener in listeners:
        open_ = listener.include_pii
        hidden = frozenset[str]() if open_ else personal
        if filters.matches(listener.filter, event, hidden):
            if open_ not in told:
                told[open_] = payload.facts(event, hidden)
            holds_pii = open_ and bool(personal)
            _add(event.account_id, listener.id, told[open_], holds_pii=holds_pii)


def row(account_id: str, webhook_id: str, event: str, text: str, **values: Any) -> dict[str, Any]:
    """A new delivery that is due at once."""
    return {
        "account_id": account_id,
        "id": new_id(),
        "webhook_id": webhook_id,
        "event": event,
        "payload": text,
        "size": len(text),
        "depth": chain.depth(),
        "created_at": clock.now(),
        **values,
    }


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Store deliveries that are due at once, as part of the open transaction."""
    # A list of one would take the slower way of many.
    db.connection().execute(_INSERT, list(rows) if len(rows) > 1 else rows[0])
    db.on_commit(jobs.wake)


_INSERT = sa.insert(DELIVERIES).values(due_at=database_now())


def _add(account_id: str, webhook_id: str, told: Mapping[str, Any], *, holds_pii: bool) -> None:
    text = payload.text(told, at=clock.now(), webhook_id=webhook_id, account_id=account_id)
    new = row(account_id, webhook_id, told["event"], text, holds_pii=holds_pii)
    db.before_commit(write, new)


def _checked(account_id: str) -> Listeners:
    # Whoever changes records without the stamps has them checked here.
    known: dict[str, Listeners] = db.notes().setdefault(CHECKED, {})
    if account_id not in known:
        known[account_id] = _load(account_id)
    return known[account_id]


def _cached(account_id: str) -> Listeners:
    found = stamps.cache("webhooks").get(account_id, lambda: _load(account_id))
    assert found is not None  # noqa: S101 - _load always finds something
    return found


def _load(account_id: str) -> Listeners:
    # The version first: what changes in between is then noticed by the next check.
    mine = WebhookVersion.account_id == account_id
    version = db.connection().scalar(sa.select(WebhookVersion.version).where(mine))
    enabled = (Webhook.account_id == account_id, Webhook.enabled)
    table: Any = Webhook.__table__
    found: dict[tuple[str, str], list[Listener]] = {}
    for one in db.connection().execute(sa.select(table).where(*enabled).order_by(table.c.id)):
        listener = Listener(one.id, one.filter, one.include_pii)
        for operation in one.events:
            found.setdefault((one.collection.lower(), operation), []).append(listener)
    return Listeners(Stamp("webhook_versions", (account_id,), version), found)
