"""The marks of views: who may call them, and what is particular about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

View = TypeVar("View", bound=Callable[..., Any])


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


def of_any_account(view: View) -> View:
    """Mark a view that has to look across accounts: what is sent tells whose it is about."""
    view.of_any_account = True  # type: ignore[attr-defined]
    return view


def shows_secret(
    view: View, where: Callable[[Mapping[str, Any]], bool] = lambda answer: True
) -> View:
    """Mark a view of whose answers some (`where`) are shown once only: not kept to be repeated."""
    view.shows_secret = where  # type: ignore[attr-defined]
    return view


def access_of(view: Callable[..., Any]) -> Access:
    """Who may call this view."""
    return getattr(view, "access", Access.SIGNED_IN)
