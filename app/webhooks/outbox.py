"""Writes a change's deliveries in the change's own transaction (transactional outbox).

A committed change always has its deliveries, and a rolled back one has none. An account's
webhooks are cached under the version of its `webhook_versions` row, which a write checks
together with its other cached versions: accounts without webhooks pay nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import clock, db, events, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.accounts.usage import models, quotas
from app.auth.principal import Principal
from app.context import trigger_depth
from app.db import versioned_cache
from app.db.functions import database_now
from app.db.versioned_cache import VersionCheck
from app.ids import new_id
from app.jobs.rq_queues import WEBHOOKS
from app.types import JSONMapping, JSONObject, cached_property
from app.webhooks import filters, payload
from app.webhooks.models import DELIVERIES, Webhook, WebhookVersion
from app.webhooks.visibility import View, maker_now, maker_version_checks

CHECKED_KEY, STORED_BYTES_KEY = "webhooks.checked", "webhooks.stored"
LARGEST_PAYLOAD = 256 * 1024  # bytes; larger ones have ids only
MAX_STORED_BYTES = 16 * 2**20  # bytes of complete payloads per transaction


@dataclass(frozen=True)
class Listener:
    """The columns of a webhook that the outbox needs."""

    id: str
    created_by: str | None
    filter: str | None
    include_pii: bool
    is_paused: bool
    """Whether its deliveries wait until an admin takes it over."""


@dataclass(frozen=True)
class Listeners:
    """The enabled webhooks of an account, also paused ones."""

    version_check: VersionCheck
    by_event: Mapping[tuple[str, str], Sequence[Listener]]
    """The listeners by collection (in lower case) and operation."""
    payloads_cut: bool = False
    """Whether new payloads have ids only, as the account's deliveries exceed the limit."""

    @cached_property
    def makers(self) -> frozenset[str]:
        """The users who own them."""
        owner_ids = (
            listener.created_by for listeners in self.by_event.values() for listener in listeners
        )
        return frozenset(filter(None, owner_ids))


def version_checks(by: Principal) -> list[VersionCheck]:
    """The versions that a caller's transaction must check before it changes records.

    Notes the webhooks for `note`, and the account's quotas for `write`; the caller's own version
    covers these.
    """
    account_id = by.account_id
    if account_id is None or by.account is None:
        return []
    listeners = versioned_cache.cache("webhooks").get(account_id, lambda: _load(account_id))
    assert listeners is not None  # noqa: S101 - _load never returns None
    notes = db.notes()
    notes.setdefault(CHECKED_KEY, {})[account_id] = listeners
    notes.setdefault(quotas.NOTED_KEY, {})[account_id] = by.account.quotas
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
    listeners = _checked(event.account_id).by_event.get(key, ())
    # Payloads, shared by webhooks with the same owner and masking.
    payloads: dict[tuple[str | None, bool], JSONMapping] = {}
    for listener in listeners:
        by, is_maker = maker_now(event.account_id, listener.created_by)
        if by is None:
            continue
        view = View(event.definition, by, listener.include_pii and is_maker)
        # The new record, or the previous one if only that may be viewed.
        for record in filter(None, (event.record, event.previous)):
            access = view.access_to(event, record)
            if access is None:
                continue
            if filters.matches(listener.filter, event, record, view.hidden(access), view.access_to):
                viewer = (listener.created_by, listener.include_pii)
                if viewer not in payloads:
                    payloads[viewer] = payload.facts(event, view)
                _add(event, listener, payloads[viewer], view)
            break
    if event.definition.announced:
        row = event.record or event.previous or {}
        about = {"collection": event.definition.name, "record_id": row.get("id")}
        events.publish(events.Happened(event.account_id, f"records.{event.operation}", about))


def row(account_id: str, webhook_id: str, event: str, text: str, **values: object) -> JSONObject:
    """A new delivery, due at once."""
    return {
        "account_id": account_id,
        "id": new_id(),
        "webhook_id": webhook_id,
        "event": event,
        "payload": text,
        "size": _bytes(text),
        "depth": trigger_depth.chain.get().depth,
        "created_at": clock.now(),
        **values,
    }


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def write(rows: Sequence[JSONMapping]) -> None:
    """Store deliveries that are due at once, in the open transaction.

    Those beyond the account's quota are due when the next day begins.
    """
    for account_id, number in Counter(row["account_id"] for row in rows).items():
        own = [row for row in rows if row["account_id"] == account_id]
        insert = _INSERT
        if quotas.is_used_up(account_id, models.DELIVERIES, number):
            insert = sa.insert(DELIVERIES).values(
                due_at=database_now(quotas.seconds_until_midnight())
            )
        # A list would use the slower executemany.
        db.connection().execute(insert, own if number > 1 else own[0])
        jobs.announce_on_commit(WEBHOOKS, account_id)


_INSERT = sa.insert(DELIVERIES).values(due_at=database_now())


def hold(rows: Sequence[JSONMapping]) -> None:
    """Store deliveries of paused webhooks, which are due once an admin takes the webhook over."""
    db.connection().execute(sa.insert(DELIVERIES), list(rows))


def _add(event: events.RecordChanged, listener: Listener, facts: JSONMapping, view: View) -> None:
    account_id, record = event.account_id, event.record or event.previous or {}
    metadata: Any = {"timestamp": clock.now(), "webhook_id": listener.id, "account_id": account_id}
    text = payload.text(facts, **metadata)
    if payloads_cut(account_id) or not _fits(_bytes(text)):
        text = payload.text(payload.cut(facts), **metadata)
    visibility_columns = {"holds_pii": view.holds_pii, "viewed_by": view.by.user_id}
    columns = {"record_id": record.get("id"), **visibility_columns}
    new = row(account_id, listener.id, facts["event"], text, **columns)
    beyond_rules = view.by.is_superadmin and account_id != SYSTEM_ACCOUNT_ID
    new["superadmin_id"] = view.by.user_id if beyond_rules else None
    db.before_commit(hold if listener.is_paused else write, new)


def _fits(size: int) -> bool:
    """Whether a payload is stored whole, by its own size and the transaction's total."""
    stored = db.notes().get(STORED_BYTES_KEY, 0) + size
    if size > LARGEST_PAYLOAD or stored > MAX_STORED_BYTES:
        return False
    db.notes()[STORED_BYTES_KEY] = stored
    return True


def _checked(account_id: str) -> Listeners:
    # For writes that did not call version_checks().
    checked: dict[str, Listeners] = db.notes().setdefault(CHECKED_KEY, {})
    if account_id not in checked:
        checked[account_id] = _load(account_id)
    return checked[account_id]


def _load(account_id: str) -> Listeners:
    # Read the version first, so that the next check detects changes in between.
    same_account = WebhookVersion.account_id == account_id
    columns = (WebhookVersion.version, WebhookVersion.payloads_cut)
    row = db.connection().execute(sa.select(*columns).where(same_account)).first()
    version, is_cut = row if row else (None, False)
    enabled = (Webhook.account_id == account_id, Webhook.enabled)
    table: Any = Webhook.__table__
    by_event: dict[tuple[str, str], list[Listener]] = {}
    for one in db.connection().execute(sa.select(table).where(*enabled).order_by(table.c.id)):
        is_paused = one.paused_at is not None
        # Whoever takes it over is not to lose what only the former owner could view.
        owner = None if is_paused else one.created_by
        listener = Listener(one.id, owner, one.filter, one.include_pii, is_paused)
        for operation in one.events:
            by_event.setdefault((one.collection.lower(), operation), []).append(listener)
    return Listeners(VersionCheck("webhook_versions", (account_id,), version), by_event, is_cut)
