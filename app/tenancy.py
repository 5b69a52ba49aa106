"""Whose rows a statement is about: what the database's own lock between accounts goes by.

A request's guard says how to find out (`be`): the account of its caller, and before there is one,
nobody's. Superadmins work across accounts. So does whatever is no request (commands, workers'
looks at what is due), but what a worker does for one row stays in the account of that row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

NOBODY, ACROSS, OWNER = "", "*", "owner"
Scope = str
"""The id of an account, or one of the above; as owner of the tables one changes the schema."""


def _across() -> Scope:
    return ACROSS


_source: ContextVar[Callable[[], Scope]] = ContextVar("tenancy", default=_across)


def be(source: Callable[[], Scope]) -> None:
    """From now on this says whose rows statements of this context are about."""
    _source.set(source)


def reset() -> None:
    """From now on statements of this context are about everybody's."""
    _source.set(_across)


def current() -> Scope:
    """Whose rows statements are about."""
    return _source.get()()


@contextmanager
def about(scope: Scope) -> Iterator[None]:
    """Inside, statements are about the rows that this says."""
    token = _source.set(lambda: scope)
    try:
        yield
    finally:
        _source.reset(token)


def in_account(account_id: str) -> AbstractContextManager[None]:
    """Inside, statements are about the rows of this account."""
    return about(account_id)


def across_accounts() -> AbstractContextManager[None]:
    """Inside, statements are about the rows of all accounts."""
    return about(ACROSS)


def as_owner() -> AbstractContextManager[None]:
    """Inside, statements may change the schema, and no lock is between accounts."""
    return about(OWNER)
