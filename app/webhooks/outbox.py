"""Writes a change's deliveries in the change's own transaction (transactional outbox).

A committed change always has its deliveries, and a rolled back one has none. An account's
webhooks are cached under the version of its `webhook_versions` row, which a write checks
together with its other cached versions: accounts without webhooks pay nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from app import clock, db, events, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.collections.access import Access
from app.context import trigger_depth
from app.db import versioned_cache
from app.db.functions import database_now
from app.db.versioned_cache import VersionCheck
from app.ids import new_id
from app.types import JSONMapping, JSONObject
from app.webhooks import filters, payload
from app.webhooks.models import DELIVERIES, Webhook, WebhookVersion
from app.webhooks.visibility import Sight, maker_now, maker_version_checks

CHECKED, STORED = "webhooks.checked", "webhooks.stored"
LARGEST_PAYLOAD = 256 * 1024  # bytes; a larger one tells the records' ids only
MOST_STORED = 16 * 2**20  # bytes of payloads that one transaction stores whole


@dataclass(frozen=True)
class Listener:
    """The columns of a webhook that the outbox needs."""

    id: str
    created_by: str | None
    filter: str | None
    include_pii: bool


@dataclass(frozen=True)
class Listeners:
    """The enabled webhooks of an account, by collection (in lower case) and operation."""

    version_check: VersionCheck
    of: Mapping[tuple[str, str], Sequence[Listener]]
    payloads_cut: bool = False
    """Whether the account's deliveries take too much for payloads that hold more than ids."""

    @cached_property
    def makers(self) -> frozenset[str]:
        """The users who own them."""
        made = (one.created_by for listeners in self.of.values() for one in listeners)
        return frozenset(filter(None, made))


def version_checks(account_id: str | None) -> list[VersionCheck]:
    """The versions that the open transaction must check before it changes records."""
    if account_id is None:
        return []
    listeners = _cached(account_id)
    db.notes().setdefault(CHECKED, {})[account_id] = listeners
    if not listeners.makers:
        return [listeners.version_check]
    return [listeners.version_check, *maker_version_checks(account_id, listeners.makers)]


def payloads_cut(account_id: str) -> bool:
    """Whether new deliveries of an account have ids only, in the open transaction."""
    return _checked(account_id).payloads_cut


def checked_version(account_id: str) -> int | None:
    """The version of an account's listeners, as checked by the open transaction."""
    return _checked(account_id).version_check.version


@events.subscribe(events.RecordChanged)
def note(event: events.RecordChanged) -> None:
    """Write the deliveries of a change before its transaction commits."""
    key = (event.definition.name.lower(), event.operation)
    listeners = _checked(event.account_id).of.get(key, ())
    # What is shown, once for all webhooks of a maker that mask alike.
    shown: dict[tuple[str | None, bool], JSONMapping] = {}
    for listener in listeners:
        sight = _sight(event, listener)
        seen = _seen(event, sight) if sight else None
        if sight is None or seen is None:
            continue
        access, record = seen
        if filters.matches(listener.filter, event, record, sight.hidden(access)):
            who = (listener.created_by, listener.include_pii)
            if who not in shown:
                shown[who] = payload.facts(event, sight)
            _add(event.account_id, listener.id, shown[who], sight)


def _sight(event: events.RecordChanged, listener: Listener) -> Sight | None:
    by, is_maker = maker_now(event.account_id, listener.created_by)
    if by is None:
        return None
    return Sight(event.definition, by, listener.include_pii and is_maker)


def _seen(event: events.RecordChanged, sight: Sight) -> tuple[Access, JSONMapping] | None:
    """The access of a webhook to the new record, else to the previous one."""
    for record in filter(None, (event.record, event.previous)):
        access = sight.access_to(event, record)
        if access is not None:
            return access, record
    return None


def row(account_id: str, webhook_id: str, event: str, text: str, **values: object) -> JSONObject:
    """A new delivery, due at once."""
    return {
        "account_id": account_id,
        "id": new_id(),
        "webhook_id": webhook_id,
        "event": event,
        "payload": text,
        "size": _bytes(text),
        "depth": trigger_depth.depth(),
        "created_at": clock.now(),
        **values,
    }


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def write(rows: Sequence[JSONMapping]) -> None:
    """Store deliveries that are due at once, in the open transaction."""
    # A list of one would take the slower way of many.
    db.connection().execute(_INSERT, list(rows) if len(rows) > 1 else rows[0])
    db.on_commit(jobs.wake)


_INSERT = sa.insert(DELIVERIES).values(due_at=database_now())


def _add(account_id: str, webhook_id: str, shown: JSONMapping, sight: Sight) -> None:
    about: Any = {"at": clock.now(), "webhook_id": webhook_id, "account_id": account_id}
    text = payload.text(shown, **about)
    if payloads_cut(account_id) or not _fits(_bytes(text)):
        text = payload.text(payload.cut(shown), **about)
    seen = {"holds_pii": sight.holds_pii, "viewed_by": sight.by.user_id}
    new = row(account_id, webhook_id, shown["event"], text, **seen)
    beyond_rules = sight.by.is_superadmin and account_id != SYSTEM_ACCOUNT_ID
    db.before_commit(write, {**new, "superadmin_id": sight.by.user_id if beyond_rules else None})


def _fits(size: int) -> bool:
    """Whether a payload is stored whole, by its own size and the transaction's total."""
    stored = db.notes().get(STORED, 0) + size
    if size > LARGEST_PAYLOAD or stored > MOST_STORED:
        return False
    db.notes()[STORED] = stored
    return True


def _checked(account_id: str) -> Listeners:
    # Whoever changes records without the version_checks has them checked here.
    known: dict[str, Listeners] = db.notes().setdefault(CHECKED, {})
    if account_id not in known:
        known[account_id] = _load(account_id)
    return known[account_id]


def _cached(account_id: str) -> Listeners:
    found = versioned_cache.cache("webhooks").get(account_id, lambda: _load(account_id))
    assert found is not None  # noqa: S101 - _load always finds something
    return found


def _load(account_id: str) -> Listeners:
    # The version first: what changes in between is then noticed by the next check.
    mine = WebhookVersion.account_id == account_id
    columns = (WebhookVersion.version, WebhookVersion.payloads_cut)
    row = db.connection().execute(sa.select(*columns).where(mine)).first()
    version, is_cut = row if row else (None, False)
    enabled = (Webhook.account_id == account_id, Webhook.enabled)
    table: Any = Webhook.__table__
    found: dict[tuple[str, str], list[Listener]] = {}
    for one in db.connection().execute(sa.select(table).where(*enabled).order_by(table.c.id)):
        listener = Listener(one.id, one.created_by, one.filter, one.include_pii)
        for operation in one.events:
            found.setdefault((one.collection.lower(), operation), []).append(listener)
    return Listeners(VersionCheck("webhook_versions", (account_id,), version), found, is_cut)
