"""What changes of rows mean to those who follow accounts.

It reads the changes of rows that the audit log records, so that no way of changing one is missed:
API, console, SCIM, sign-in, manifest, jobs, or the closing of an account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app import db, events
from app.accounts.usage import quotas
from app.audit.append import CREATE, DELETE
from app.auth.models import InvitationState
from app.context import actor
from app.events import RowChanged
from app.operator.types import EventType
from app.types import JSONObject

CLOSING_KEY = "operator.closing"
TERMS = frozenset({"plan", "flags"})
Found = Iterator[tuple[EventType, JSONObject]]


@events.subscribe(events.RowChanged)
def _on_row(event: RowChanged) -> None:
    read = READERS.get(event.table_name)
    # The end of an account is one event: its rows that go with it have none.
    closing = db.notes().get(CLOSING_KEY) if read is not None and read is not _account else None
    if read is None or closing == event.account_id:
        return
    for type, data in read(event):
        events.publish(events.Happened(event.account_id, type, data))


@events.subscribe(events.AccountClosing)
def _on_closing(event: events.AccountClosing) -> None:
    db.notes()[CLOSING_KEY] = event.account_id


def _account(event: RowChanged) -> Found:
    own: JSONObject = {"account_id": event.row_id}
    is_reopened = event.old.get("closed_at") and not event.new.get("closed_at")
    if event.operation == CREATE or (is_reopened and event.new):  # from a bundle
        yield EventType.ACCOUNT_CREATED, {**own, "template": event.new["template"]}
    elif _became(event, "closed_at"):
        yield EventType.ACCOUNT_DELETED, own
    elif event.operation != DELETE:
        fields = set(event.columns) - TERMS
        old, new = dict(event.old["settings"] or {}), dict(event.new["settings"] or {})
        has_other_quotas = old.pop(quotas.SETTING, None) != new.pop(quotas.SETTING, None)
        if old == new:
            fields.discard("settings")
        if event.old["is_active"] and not event.new["is_active"]:
            fields.discard("is_active")
            yield EventType.ACCOUNT_SUSPENDED, own
        if fields:
            yield EventType.ACCOUNT_UPDATED, {**own, "fields": sorted(fields)}
        if event.columns & TERMS or has_other_quotas:
            plans = {"plan": event.new["plan"], "previous_plan": event.old["plan"]}
            yield EventType.PLAN_CHANGED, {**own, **plans}


def _user(event: RowChanged) -> Found:
    own: JSONObject = {"user_id": event.row_id}
    if event.operation == CREATE:
        yield EventType.USER_CREATED, {**own, "role_id": event.new["role_id"]}
        # By an invitation, a domain, a provider or a registration: nobody else made them a user.
        if actor.current().user_id in (actor.ANONYMOUS.user_id, event.row_id):
            yield EventType.USER_JOINED, own
    elif event.operation == DELETE:
        if event.old["leaving_at"] is None:  # else the event came when access ended
            yield EventType.USER_DELETED, own
    elif _became(event, "leaving_at"):
        yield EventType.USER_DELETED, own
    elif event.new["leaving_at"] is None:
        fields = set(event.columns) - {"role_id", "email_verified_at", "leaving_at"}
        if not event.old["email_verified"] and event.new["email_verified"]:
            fields.discard("email_verified")
            yield EventType.USER_VERIFIED, own
        if "role_id" in event.columns:
            roles = {"role_id": event.new["role_id"], "previous_role_id": event.old["role_id"]}
            yield EventType.USER_ROLE_CHANGED, {**own, **roles}
        if event.old["is_active"] and not event.new["is_active"]:
            fields.discard("is_active")
            yield EventType.USER_DEACTIVATED, own
        if fields:
            yield EventType.USER_UPDATED, {**own, "fields": sorted(fields)}


def _member(event: RowChanged) -> Found:
    row = event.new or event.old
    type = EventType.MEMBER_ADDED if event.operation == CREATE else EventType.MEMBER_REMOVED
    yield type, {"group_id": row["group_id"], "user_id": row["user_id"]}


def _invitation(event: RowChanged) -> Found:
    own: JSONObject = {"invitation_id": event.row_id}
    was_open = event.old.get("state") == InvitationState.PENDING
    if event.operation == CREATE:
        yield EventType.INVITATION_CREATED, own
    elif was_open and event.new.get("state") == InvitationState.ACCEPTED:
        yield EventType.INVITATION_ACCEPTED, own
    elif was_open and event.new.get("state") != InvitationState.PENDING:
        yield EventType.INVITATION_REVOKED, own


def _switched(
    column: str, name: str, on: EventType, off: EventType
) -> Callable[[RowChanged], Found]:
    """Of a row that is on while a column has a value."""

    def read(event: RowChanged) -> Found:
        was, is_on = (bool(row.get(column)) for row in (event.old, event.new))
        if was != is_on:
            yield on if is_on else off, {name: event.row_id}

    return read


def _became(event: RowChanged, column: str) -> Any:
    return event.new.get(column) and not event.old.get(column)


READERS: dict[str, Callable[[RowChanged], Found]] = {
    "accounts": _account,
    "users": _user,
    "group_members": _member,
    "invitations": _invitation,
    "account_domains": _switched(
        "verified_at", "domain_id", EventType.DOMAIN_VERIFIED, EventType.DOMAIN_LAPSED
    ),
    "provider_settings": _switched(
        "enabled", "provider_id", EventType.PROVIDER_ENABLED, EventType.PROVIDER_DISABLED
    ),
}
"""How a change of a table's row is read."""
