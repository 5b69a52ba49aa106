"""The marks of views: who may call them, and what is particular about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

View = TypeVar("View", bound=Callable[..., Any])
# Of who has shown no credential, and so costs the service more than it costs them.
LARGEST_PUBLIC_BODY, LARGEST_DOCUMENT = 64 * 2**10, 256 * 2**10


class Access(Enum):
    """Who may call a view."""

    PUBLIC = "public"  # credentials are not looked at
    ANONYMOUS = "anonymous"  # nobody need be signed in, but a bad credential is refused
    SIGNED_IN = "signed in"
    ACCOUNT_ADMIN = "admin of the account"
    SUPERADMIN = "superadmin"


def allow(access: Access) -> Callable[[View], View]:
    """Mark who may call a view; without the mark it takes a signed-in caller."""

    def mark(view: View) -> View:
        view.access = access  # type: ignore[attr-defined]
        return view

    return mark


public = allow(Access.PUBLIC)
account_admin = allow(Access.ACCOUNT_ADMIN)
superadmin = allow(Access.SUPERADMIN)


def across_accounts(view: View) -> View:
    """Mark a view that has to look across accounts: what is sent tells whose it is about."""
    view.of_any_account = True  # type: ignore[attr-defined]
    return view


def max_body(most: int) -> Callable[[View], View]:
    """Mark how many bytes the body of a public view has at most."""

    def mark(view: View) -> View:
        view.most_bytes = most  # type: ignore[attr-defined]
        return view

    return mark


def shows_secret(
    view: View, where: Callable[[Mapping[str, Any]], bool] = lambda answer: True
) -> View:
    """Mark a view of whose answers some (`where`) are shown once only: not kept to be repeated."""
    view.shows_secret = where  # type: ignore[attr-defined]
    return view


def access_of(view: Callable[..., Any]) -> Access:
    """Who may call this view."""
    return getattr(view, "access", Access.SIGNED_IN)


def max_body_of(view: Callable[..., Any]) -> int:
    """How many bytes the body of a public view has at most."""
    return getattr(view, "most_bytes", LARGEST_PUBLIC_BODY)
