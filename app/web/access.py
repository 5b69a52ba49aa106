"""Decorators that mark who may call a view, and how the guard treats it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from app.types import JSONMapping

View = TypeVar("View", bound=Callable[..., Any])
# Limits for callers without credentials, whose requests cost the service more than them.
LARGEST_PUBLIC_BODY, LARGEST_DOCUMENT = 64 * 2**10, 256 * 2**10


class Access(Enum):
    """Who may call a view."""

    PUBLIC = "public"  # credentials are ignored
    PAGE = "page"  # by the session of the console, whose own guard checks it
    ANONYMOUS = "anonymous"  # no credential needed, but an invalid one is refused
    SIGNED_IN = "signed in"
    ACCOUNT_ADMIN = "admin of the account"
    SUPERADMIN = "superadmin"
    DIRECTORY = "directory"  # by a SCIM token, which is the only credential that counts


def allow(access: Access) -> Callable[[View], View]:
    """Mark who may call a view; the default is any signed-in caller."""

    def mark(view: View) -> View:
        view.access = access  # type: ignore[attr-defined]
        return view

    return mark


public = allow(Access.PUBLIC)
account_admin = allow(Access.ACCOUNT_ADMIN)
superadmin = allow(Access.SUPERADMIN)
directory = allow(Access.DIRECTORY)


def across_accounts(view: View) -> View:
    """Mark a view that works across accounts: the account follows from what is sent."""
    view.of_any_account = True  # type: ignore[attr-defined]
    return view


def query_credentials(view: View) -> View:
    """Mark a view that also takes `?ticket=` and `?token=`, for clients without headers."""
    view.query_credentials = True  # type: ignore[attr-defined]
    return view


def reads(view: View) -> View:
    """Mark a view that only reads although its method is POST; read-only API keys may call it."""
    view.__dict__["reads"] = True
    return view


def beyond_quota(view: View) -> View:
    """Mark a view that works even if its account has used up its requests."""
    view.__dict__["beyond_quota"] = True
    return view


def max_body(limit: int) -> Callable[[View], View]:
    """Mark the largest body, in bytes, of a public view."""

    def mark(view: View) -> View:
        view.max_body = limit  # type: ignore[attr-defined]
        return view

    return mark


def shows_secret(view: View, where: Callable[[JSONMapping], bool] = lambda answer: True) -> View:
    """Mark a view whose responses (those that match `where`) show a secret and are never saved."""
    view.shows_secret = where  # type: ignore[attr-defined]
    return view


@cache
def access_of(view: Callable[..., object]) -> Access:
    """Return who may call a view."""
    return getattr(view, "access", Access.SIGNED_IN)


def max_body_of(view: Callable[..., object]) -> int:
    """Return the largest body, in bytes, of a public view."""
    return getattr(view, "max_body", LARGEST_PUBLIC_BODY)
