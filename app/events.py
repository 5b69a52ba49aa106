"""What happened, told to whoever must act on it, inside the transaction in which it happened.

A feature below tells (`publish`), a feature above listens (`subscribe`): so imports go downhill
only, and nothing is announced that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class UserLostAccess:
    """A user was deactivated, deleted or given a new password."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class RoleChanged:
    """A user has another role, which tokens that are there obey; sessions are begun anew."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class RoleAssigned:
    """Somebody gave a user another role; a sign-in must not take it back."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class AddressReplaced:
    """A user was given another address at once, which nobody has proved: by an admin, say."""

    account_id: str
    user_id: str
    previous: str
    previous_verified: bool
    by_user: bool
    """Whether that was the user, not somebody else."""


@dataclass(frozen=True)
class AddressVerified:
    """An address that nobody had proved is its owner's; who came first under it may be another."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class PiiMemberExpelled:
    """Somebody outside `pii_access` set a member's address or password, which ended membership."""

    account_id: str
    user_id: str
    email: str  # as it was before
    reason: str


@dataclass(frozen=True)
class PiiMemberAdmitted:
    """A user who was there before was let into `pii_access`."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class RefreshTokenReused:
    """A refresh token came a second time, which ended the session that it was of."""

    account_id: str
    session_id: str
    moment: datetime


@dataclass(frozen=True)
class AccountClosed:
    """An account was closed for good; what it owns is to be removed."""

    account_id: str


@dataclass(frozen=True)
class RoleDeleted:
    """A role is about to be deleted; what only remembers it must let go of it."""

    role_id: int


@dataclass(frozen=True)
class RecordChanged:
    """A record was created, updated or deleted, by a caller or as a consequence of a deletion.

    `record` and `previous` are rows as stored: None where there is none after, or before.
    """

    definition: Any  # collections.definition.Definition
    account_id: str
    operation: str  # "create", "update" or "delete"
    record: Mapping[str, Any] | None
    previous: Mapping[str, Any] | None
    by: Any  # auth.principal.Principal
    access_to: Callable[[Any, Any, Any], Any]
    """Of (definition, row, principal): what viewing the row opens to them, None where nothing."""


@dataclass(frozen=True)
class RecordErased:
    """A record is deleted, and whatever was kept of it is to be forgotten."""

    account_id: str
    record_id: str


@dataclass(frozen=True)
class UserErased:
    """A user is deleted, and whatever was kept of the person is to be forgotten."""

    account_id: str
    user_id: str
    emails: frozenset[str]


@dataclass(frozen=True)
class CollectionRemoved:
    """A collection is about to be dropped, with the records of all accounts."""

    definition: Any


@dataclass(frozen=True)
class DefaultsBackfilled:
    """Records of all accounts are about to be given defaults where they have no value."""

    definition: Any  # the collection as it was, without the fields that are new
    defaults: Mapping[str, Any]


_subscribers: dict[type, list[Callable[[Any], None]]] = {}


def subscribe(event: type) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Have a function called with every event of a type."""

    def register(subscriber: Callable[[Any], None]) -> Callable[[Any], None]:
        _subscribers.setdefault(event, []).append(subscriber)
        return subscriber

    return register


def publish(event: object) -> None:
    """Call every subscriber, within the open transaction."""
    for subscriber in _subscribers.get(type(event), ()):
        subscriber(event)
