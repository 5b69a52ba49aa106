"""The current actor, which the audit log stores with every change.

The API's guard, the console's guard and commands set a source, which is called only when something
is written. Without a source the service itself acts: `system`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple


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


SYSTEM = Actor("system", "system", "system")
ANONYMOUS = Actor("anonymous", "anonymous", "anonymous")


def system() -> Actor:
    """Return the service itself."""
    return SYSTEM


source: ContextVar[Callable[[], Actor]] = ContextVar("actor", default=system)
"""Returns the actor of the current context."""


def act_as(user_id: str, email: str | None, name: str | None) -> None:
    """Set a user as the actor, such as the recipient of a mailed link."""
    replaced, name = source.get(), name or email
    source.set(lambda: replaced()._replace(user_id=user_id, user_email=email, user_name=name))


@contextmanager
def acting(as_: Actor) -> Iterator[None]:
    """Run the block as an actor."""
    token = source.set(lambda: as_)
    try:
        yield
    finally:
        source.reset(token)


def current() -> Actor:
    """The actor of the current context."""
    return source.get()()
