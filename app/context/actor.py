"""The current actor, which the audit log stores with every change.

The API's guard, the console's guard and commands set a source, which is called only when something
is written. Without a source the service itself acts: `system`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import orjson
from cryptography.fernet import InvalidToken

from app import clock, crypto
from app.ids import NIL


class ActorKind(StrEnum):
    """What acts: a user, or something on a user's behalf."""

    USER = "user"
    API_KEY = "api_key"
    WORKFLOW = "workflow"
    SERVICE = "service"
    IMPORT = "import"
    EXTENSION = "extension"
    OPERATOR = "operator"


class Named(NamedTuple):
    """Whoever acts, as logs name them beside the user."""

    kind: ActorKind
    id: str
    name: str | None


class Actor(NamedTuple):
    """A user, the origin of the request, and the electronic signature if there is one."""

    user_id: str
    user_email: str | None
    user_name: str | None
    ip_address: str | None = None
    user_agent: str | None = None
    request_id: str | None = None
    es_username: str | None = None
    es_reason: str | None = None
    es_timestamp: datetime | None = None
    es_method: str | None = None
    """The method of the signature, unless a password."""
    portal: str | None = None
    """The id of the portal session that the user acts in."""
    kind: ActorKind | None = None
    """None: a user. A superadmin is an operator, except in the system account."""
    id: str | None = None
    """That of the key, workflow or import; None for whoever has the id of the user."""
    name: str | None = None
    """Its name, where there is an id."""

    def named(self, account_id: str) -> Named:
        """Who acts in an account."""
        kind = self.kind or ActorKind.USER
        if kind is ActorKind.OPERATOR and account_id == NIL:
            kind = ActorKind.USER
        if self.id is None:
            return Named(kind, self.user_id, self.user_name)
        return Named(kind, self.id, self.name)


SYSTEM = Actor("system", "system", "system")
ANONYMOUS = Actor("anonymous", "anonymous", "anonymous")


def system() -> Actor:
    """Return the service itself."""
    return SYSTEM


source: ContextVar[Callable[[], Actor]] = ContextVar("actor", default=system)
"""Returns the actor of the current context."""


def act_as(
    user_id: str, email: str | None, name: str | None, kind: ActorKind | None = None
) -> None:
    """Set a user as the actor, such as the recipient of a mailed link."""
    replaced, name = source.get(), name or email

    def acting() -> Actor:
        user = replaced()._replace(user_id=user_id, user_email=email, user_name=name)
        return user._replace(kind=kind, id=None, name=None)

    source.set(acting)


@contextmanager
def acting(as_: Actor) -> Iterator[None]:
    """Run the block as an actor."""
    token = source.set(lambda: as_)
    try:
        yield
    finally:
        source.reset(token)


@contextmanager
def acting_for(kind: ActorKind, id: str, name: str | None) -> Iterator[None]:
    """Run the block as something that acts on behalf of the user, such as an import."""
    replaced = source.get()
    token = source.set(lambda: replaced()._replace(kind=kind, id=id, name=name))
    try:
        yield
    finally:
        source.reset(token)


def current() -> Actor:
    """The actor of the current context."""
    return source.get()()


def stored() -> str:
    """The current actor for a job, which acts later; encrypted, as it names a person."""
    return crypto.encrypt(orjson.dumps(tuple(current())).decode())


def restored(text: str) -> Actor:
    """The actor that `stored` returned; the service itself, if no key fits."""
    try:
        values = Actor(*orjson.loads(crypto.decrypt(text)))
    except InvalidToken:
        return SYSTEM
    signed_at, kind = values.es_timestamp, values.kind
    return values._replace(
        es_timestamp=clock.parse(str(signed_at)) if signed_at else None,
        kind=ActorKind(kind) if kind else None,
    )
