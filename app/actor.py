"""Who changes things at this moment: what the audit log writes beside every change.

A request's guard, the console's guard or a command says how to find out (`be`); it is asked only
when something is written. Where nobody has said anything, the service itself acts: `system`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple


class Actor(NamedTuple):
    """Somebody, where the request came from, and the electronic signature if there is one."""

    user_id: str
    user_email: str | None
    user_name: str | None
    ip_address: str | None = None
    user_agent: str | None = None
    request_id: str | None = None
    es_username: str | None = None
    es_reason: str | None = None
    es_timestamp: datetime | None = None


SYSTEM = Actor("system", "system", "system")
ANONYMOUS = Actor("anonymous", "anonymous", "anonymous")


def _system() -> Actor:
    return SYSTEM


_source: ContextVar[Callable[[], Actor]] = ContextVar("actor", default=_system)


def be(source: Callable[[], Actor]) -> None:
    """From now on this says who acts in this context."""
    _source.set(source)


def identify(user_id: str, email: str, name: str | None) -> None:
    """From now on it is this user who acts here: whoever follows a link that was mailed to them."""
    source = _source.get()
    be(lambda: source()._replace(user_id=user_id, user_email=email, user_name=name or email))


def reset() -> None:
    """From now on the service itself acts in this context."""
    _source.set(_system)


def current() -> Actor:
    """Who acts."""
    return _source.get()()
