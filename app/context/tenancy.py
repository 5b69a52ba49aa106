"""The tenant scope of statements, which row-level security enforces.

In a request it is the caller's account; before the caller is known, no account. Superadmins work
across accounts. So do commands and a worker's search for due work; what a worker does for one row
stays in the account of that row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

NO_ACCOUNT, ALL_ACCOUNTS, OWNER = "", "*", "owner"
NO_SINGLE_ACCOUNT = (NO_ACCOUNT, ALL_ACCOUNTS, OWNER)
Scope = str
"""An account's id, or one of the above. OWNER, the owner of the tables, may change the schema."""


def across() -> Scope:
    """Return the scope of all accounts."""
    return ALL_ACCOUNTS


source: ContextVar[Callable[[], Scope]] = ContextVar("tenancy", default=across)
"""Returns the scope of the current context."""


def current() -> Scope:
    """The scope of the current context."""
    return source.get()()


@contextmanager
def scoped_to(scope: Scope) -> Iterator[None]:
    """Run the block in a scope."""
    token = source.set(lambda: scope)
    try:
        yield
    finally:
        source.reset(token)


def in_account(account_id: str) -> AbstractContextManager[None]:
    """Run the block in one account."""
    return scoped_to(account_id)


def across_accounts() -> AbstractContextManager[None]:
    """Run the block across all accounts."""
    return scoped_to(ALL_ACCOUNTS)


def as_owner() -> AbstractContextManager[None]:
    """Run the block as owner of the tables: no row-level security, free to change the schema."""
    return scoped_to(OWNER)


reads_views: ContextVar[bool] = ContextVar("reads_views", default=False)


@contextmanager
def through_views() -> Iterator[None]:
    """Read an account's records through the views that let indexes serve (row-level security)."""
    token = reads_views.set(True)
    try:
        yield
    finally:
        reads_views.reset(token)
