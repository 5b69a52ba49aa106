"""Domain events, handled inside the transaction that publishes them.

Lower packages `publish`, higher packages `subscribe`: imports go one way, and no event outlives a
rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from app import clock
from app.ids import new_id
from app.types import JSONMapping, JSONObject


@dataclass(frozen=True)
class UserLostAccess:
    """A user was deactivated, deleted or given a new password."""

    account_id: str
    user_id: str
    is_deleted: bool = False


@dataclass(frozen=True)
class UserLeaving:
    """A user is about to be deleted: whatever refers to the user lets go, or raises Conflict."""

    account_id: str
    user_id: str
    by: str | None
    """The id of the acting user."""
    unfinished: list[str]
    """Subscribers add the job that lets go of the rest; the row stays until it has."""


@dataclass(frozen=True)
class UserLeavesLater:
    """The row of a deleted user stays until jobs have let go of it; nothing else may."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class AdminLeft:
    """A user was deactivated, deleted or demoted, and is no active admin any more."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class FirstFactorAdded:
    """A user has a first second factor; sessions from before it have passed none."""

    account_id: str
    user_id: str
    session_id: str | None
    """The session that added it, which goes on."""


@dataclass(frozen=True)
class RoleChanged:
    """A user's role changed: access tokens follow at once, sessions end."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class RolesChanged:
    """The roles of many users changed at once, with the same effect as `RoleChanged`."""

    account_id: str
    user_ids: frozenset[str]


@dataclass(frozen=True)
class RoleAssigned:
    """An admin assigned a role, which the next SSO sign-in must not undo."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class AddressReplaced:
    """A user's e-mail address was replaced without verification, for example by an admin."""

    account_id: str
    user_id: str
    previous: str
    previous_verified: bool
    by_user: bool
    """Whether the user did it."""


@dataclass(frozen=True)
class AddressVerified:
    """A user verified an unverified address; whoever used it before may be somebody else."""

    account_id: str
    user_id: str
    since: datetime | None = None
    """Since when it may have been somebody else; None: for as long as it was unverified."""


@dataclass(frozen=True)
class PiiMemberExpelled:
    """A caller without `pii_access` set a member's address or password; the membership ended."""

    account_id: str
    user_id: str
    email: str  # as it was before
    reason: str


@dataclass(frozen=True)
class PiiMemberAdmitted:
    """An existing user joined `pii_access`."""

    account_id: str
    user_id: str


@dataclass(frozen=True)
class RefreshTokenReused:
    """A refresh token was used twice; its session ended."""

    account_id: str
    session_id: str
    moment: datetime


@dataclass(frozen=True)
class MfaSessionStarted:
    """A session started with a second factor; it has the id of the challenge if there was one."""

    account_id: str
    session_id: str


@dataclass(frozen=True)
class SignedIn:
    """A session started."""

    account_id: str
    user_id: str
    email: str
    name: str | None
    session_id: str
    application: str
    """`api`, `console` or `portal`."""
    mfa: bool


@dataclass(frozen=True)
class SignInFailed:
    """A credential was refused; published outside of the transaction, which rolls back."""

    account_id: str
    user_id: str | None
    email: str | None
    reason: str
    provider: str | None = None


@dataclass(frozen=True)
class PortalCreated:
    """A portal session was created, which acts as a user once its address is opened."""

    account_id: str
    user_id: str
    session_id: str
    pages: list[str]


@dataclass(frozen=True)
class SessionsEnded:
    """Sessions of a user were ended before they expired."""

    account_id: str
    user_id: str
    count: int


@dataclass(frozen=True)
class RowChanged:
    """An audited row was created, changed or deleted; `columns` are those that changed."""

    account_id: str
    operation: str
    table_name: str
    row_id: str
    columns: frozenset[str]
    old: JSONMapping
    """The row before, as stored; empty if it is new."""
    new: JSONMapping
    """The row after; empty if it was deleted."""


@dataclass(frozen=True)
class Happened:
    """Something of an account that its operator and its workflows may follow (docs/events.md)."""

    account_id: str
    type: str
    data: JSONMapping
    """What it concerns, by id: no secret and no personal value."""
    id: str = field(default_factory=new_id)
    at: datetime = field(default_factory=clock.now)


@dataclass(frozen=True)
class Sealing:
    """A worker gives what is committed its numbers; outside of a transaction."""


@dataclass(frozen=True)
class MailSent:
    """A mail server has taken a mail; published outside of a transaction."""

    account_id: str


@dataclass(frozen=True)
class ViewRunsAgain:
    """A view failed on outdated rows; what it has rendered is not answered."""


@dataclass(frozen=True)
class PersonalDataShown:
    """The audit log shows somebody personal values of an account's records."""

    definition: Any  # collections.definitions.Definition
    account_id: str
    record_ids: tuple[str, ...]
    fields: frozenset[str]
    by: Any  # auth.principal.Principal


@dataclass(frozen=True)
class AccountClosing:
    """An account is about to be closed for good; it still has all its rows."""

    account_id: str


@dataclass(frozen=True)
class AccountCreated:
    """An account was created, without users; what fills it belongs to the same transaction."""

    account_id: str
    template: str | None
    """The name of the template that was asked for; None for the default one."""


@dataclass(frozen=True)
class AccountClosed:
    """An account was closed for good; its data must be removed."""

    account_id: str


@dataclass(frozen=True)
class RoleDeleted:
    """A role is about to be deleted; loose references to it must go."""

    role_id: int


@dataclass(frozen=True)
class RecordChanged:
    """A record was created, updated or deleted, by a caller or by a cascade.

    `record` and `previous` are rows as stored; None after a deletion, or before a creation.
    """

    definition: Any  # collections.definitions.Definition
    account_id: str
    operation: str  # "create", "update" or "delete"
    record: JSONMapping | None
    previous: JSONMapping | None
    by: Any  # auth.principal.Principal
    access_to: Callable[[Any, Any, Any], Any]
    """(definition, row, principal) -> the access that viewing the row grants, or None."""
    is_restored: bool = False
    """Whether a creation brings a record back from the trash."""


@dataclass(frozen=True)
class RecordErased:
    """A deleted record must be erased from histories and logs."""

    account_id: str
    record_id: str


@dataclass(frozen=True)
class UserErased:
    """A deleted user must be erased from histories and logs."""

    account_id: str
    user_id: str
    emails: frozenset[str]
    is_home: bool
    """Whether it is the user's account, not one in which a superadmin acted."""


@dataclass(frozen=True)
class CollectionRemoved:
    """A collection is about to be dropped, with the records of all accounts."""

    definition: Any


@dataclass(frozen=True)
class ViewRemoved:
    """A view is removed, which has no records of its own."""

    definition: Any


@dataclass(frozen=True)
class TrashDiscarded:
    """A collection is about to lose its trash, with the records of all accounts in it."""

    definition: Any


@dataclass(frozen=True)
class DefaultsBackfilled:
    """Empty values in the records of all accounts are about to get a default."""

    definition: Any  # the collection before the change, without the new fields
    defaults: JSONMapping


@dataclass(frozen=True)
class FieldsRemoved:
    """Stored fields are about to be removed, with the values of all accounts."""

    definition: Any  # the collection before the change
    names: frozenset[str]


@dataclass(frozen=True)
class FieldNamesEnd:
    """Would a change of a collection leave anything that names these fields behind?"""

    definition: Any  # the collection before the change
    names: frozenset[str]
    problems: list[JSONObject]
    """Subscribers add one for each place that names a field."""


@dataclass(frozen=True)
class ChoicesEnd:
    """Would a change of a collection take choices away that something names?"""

    definition: Any  # the collection before the change
    choices: Mapping[str, Sequence[str]]
    """The choices that each field loses."""
    problems: list[JSONObject]
    """Subscribers add one for each place that names one."""


@dataclass(frozen=True)
class FieldsRenamed:
    """Fields are renamed or removed: what stores their names follows, in all accounts."""

    definition: Any  # the collection before the change
    renames: Mapping[str, str]
    removed: frozenset[str]


@dataclass(frozen=True)
class CollectionNameEnds:
    """Would renaming a collection leave anything that names it behind?"""

    name: str
    problems: list[JSONObject]
    """Subscribers add one for each place that names it and cannot follow."""


@dataclass(frozen=True)
class CollectionRenamed:
    """A collection is renamed: what stores its name follows, in all accounts."""

    former: str
    name: str


Event = TypeVar("Event")
Subscriber = Callable[[Event], None]
_subscribers: dict[type, list[Callable[[Any], None]]] = {}


def subscribe(event: type[Event]) -> Callable[[Subscriber[Event]], Subscriber[Event]]:
    """Register a subscriber for an event type."""

    def register(subscriber: Subscriber[Event]) -> Subscriber[Event]:
        _subscribers.setdefault(event, []).append(subscriber)
        return subscriber

    return register


def unsubscribe(event: type[Event], subscriber: Subscriber[Event]) -> None:
    """Remove a subscriber, if it is one."""
    own = _subscribers.get(event, [])
    own[:] = [one for one in own if one is not subscriber]


def publish(event: object) -> None:
    """Call every subscriber, inside the open transaction."""
    for subscriber in _subscribers.get(type(event), ()):
        subscriber(event)
