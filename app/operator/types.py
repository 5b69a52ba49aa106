"""The types of events, and how a list of them is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from app.errors import InvalidValues, problem
from app.types import JSONObject


class EventType(StrEnum):
    """What happened (docs/events.md)."""

    ACCOUNT_CREATED = "account.created"
    ACCOUNT_UPDATED = "account.updated"
    ACCOUNT_SUSPENDED = "account.suspended"
    ACCOUNT_DELETED = "account.deleted"
    USER_CREATED = "user.created"
    USER_JOINED = "user.joined"
    USER_UPDATED = "user.updated"
    USER_VERIFIED = "user.verified"
    USER_ROLE_CHANGED = "user.role_changed"
    USER_DEACTIVATED = "user.deactivated"
    USER_DELETED = "user.deleted"
    MEMBER_ADDED = "group.member_added"
    MEMBER_REMOVED = "group.member_removed"
    INVITATION_CREATED = "invitation.created"
    INVITATION_ACCEPTED = "invitation.accepted"
    INVITATION_REVOKED = "invitation.revoked"
    DOMAIN_VERIFIED = "domain.verified"
    DOMAIN_LAPSED = "domain.lapsed"
    PROVIDER_ENABLED = "provider.enabled"
    PROVIDER_DISABLED = "provider.disabled"
    PLAN_CHANGED = "plan.changed"
    QUOTA_REACHED = "quota.reached"
    QUOTA_EXCEEDED = "quota.exceeded"
    RECORD_CREATED = "records.create"
    RECORD_UPDATED = "records.update"
    RECORD_DELETED = "records.delete"


RECORDS = "records"
KINDS = tuple(dict.fromkeys(f"{one.partition('.')[0]}.*" for one in EventType))
"""The types of one noun, such as `user.*`."""
WRITTEN = (*KINDS, *(one.value for one in EventType))
OF_WORKFLOWS = tuple(
    one.value for one in EventType if one.partition(".")[0] in ("user", "group", "invitation")
)
"""Those that an account's own workflows hear, beside changes of records."""


def expand(written: Iterable[str]) -> frozenset[str]:
    """The types that a list of types and `noun.*` names."""
    wanted = frozenset(written)
    return frozenset(
        one.value for one in EventType if wanted & {one.value, f"{one.partition('.')[0]}.*"}
    )


def problems(written: Iterable[str]) -> list[JSONObject]:
    """A problem for each type that there is not."""
    return [
        problem("types", "invalid_option", f"There is no type {one[:80]}.")
        for one in written
        if one not in WRITTEN
    ]


def parse(text: str) -> Sequence[str]:
    """The types and `noun.*` of a text, which are separated by commas. Raises InvalidValues."""
    written = [one.strip() for one in text.split(",")]
    if found := problems(written):
        raise InvalidValues(found)
    return written
