"""Access to views: who may call one, and how the guard treats its requests, declared on the view.

`@account_admin` or, with options, `@account_admin(recent_sign_in=True, api_keys=False)`. The guard
enforces the declaration before it reads the body, and the API description states it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, overload

from app.types import JSONMapping

View = TypeVar("View", bound=Callable[..., Any])
# Limits for callers without credentials, whose requests cost the service more than them.
READ_METHODS = ("GET", "HEAD", "OPTIONS")
READ, WRITE = "read", "write"
PORTAL = "portal"  # written only: it opens sessions
OPERATOR_RESOURCES = (
    *("accounts", "users", "definitions", "workflows"),
    *("webhooks", "records", "plans", "events"),
)
OPERATOR_SCOPES = (
    *(f"{resource}:{right}" for resource in OPERATOR_RESOURCES for right in (READ, WRITE)),
    f"{PORTAL}:{WRITE}",
)
"""What an operator key may be given; writing includes reading."""
LARGEST_PUBLIC_BODY, LARGEST_DOCUMENT = 64 * 2**10, 256 * 2**10


class AccessLevel(Enum):
    """The callers that a view admits."""

    PUBLIC = "public"  # credentials are ignored
    PAGE = "page"  # by the session of the console, whose own guard checks it
    ANONYMOUS = "anonymous"  # no credential needed, but an invalid one is refused
    SIGNED_IN = "signed in"
    ACCOUNT_ADMIN = "admin of the account"
    SUPERADMIN = "superadmin"
    DIRECTORY = "directory"  # by a SCIM token, which is the only credential that counts


@dataclass(frozen=True)
class ViewAccess:
    """A view's declaration of its callers; decorates views, with or without options."""

    level: AccessLevel
    recent_sign_in: bool = False
    """Whether the user must have authenticated in the last 15 minutes."""
    api_keys: bool = True
    operator: str | None = None
    """The resource whose scope opens it to operator keys; None: it is closed to them."""
    reads: bool = False
    """Whether it only reads although its method is POST; read-only API keys may call it."""
    across_accounts: bool = False
    """Whether it works across accounts: the account follows from what is sent."""
    query_credentials: bool = False
    """Whether it also takes `?ticket=` and `?token=`, for clients without headers."""
    beyond_quota: bool = False
    """Whether it works even if its account has used up its requests."""
    max_body: int = LARGEST_PUBLIC_BODY
    """The largest body of a public view, in bytes."""
    shows_secret: bool | Callable[[JSONMapping], bool] = False
    """Whether responses, or those that match, show a secret and are never saved."""

    def __post_init__(self) -> None:
        """Refuse declarations that contradict themselves."""
        if self.recent_sign_in and self.api_keys:
            raise ValueError("recent_sign_in excludes API keys: add api_keys=False")
        if self.operator not in (None, PORTAL, *OPERATOR_RESOURCES):
            raise ValueError(f"There is no scope of operator keys for {self.operator}")

    def operator_scope(self, method: str) -> str | None:
        """The scope that an operator key needs for a request; None if there is none."""
        if self.operator is None:
            return None
        right = READ if method in READ_METHODS or self.reads else WRITE
        return f"{self.operator}:{right}"

    @overload
    def __call__(self, view: View, /) -> View: ...

    @overload
    def __call__(self, /, **options: Any) -> ViewAccess: ...

    def __call__(self, view: View | None = None, /, **options: Any) -> View | ViewAccess:
        """Declare the access of a view, or return a declaration with options."""
        if view is None:
            return replace(self, **options)
        view.access = self  # type: ignore[attr-defined]
        return view


public = ViewAccess(AccessLevel.PUBLIC)
console_session = ViewAccess(AccessLevel.PAGE)
anonymous = ViewAccess(AccessLevel.ANONYMOUS)
signed_in = ViewAccess(AccessLevel.SIGNED_IN)
account_admin = ViewAccess(AccessLevel.ACCOUNT_ADMIN)
superadmin = ViewAccess(AccessLevel.SUPERADMIN)
directory = ViewAccess(AccessLevel.DIRECTORY)


@cache
def access_of(view: Callable[..., object] | None) -> ViewAccess:
    """Return the access of a view; the default is any signed-in caller."""
    access: ViewAccess = getattr(view, "access", signed_in)
    return access
