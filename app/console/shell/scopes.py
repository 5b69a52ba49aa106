"""Resolves the account and the collection that a page's address names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from app.auth import principal as principals
from app.auth.principal import AccountRef, Principal
from app.collections import access, definitions
from app.collections.access import Access
from app.collections.definitions import Definition
from app.console.shell import guard, navigation
from app.console.shell.lists import UrlArgs
from app.errors import Forbidden, NotFound
from app.rules import OPERATIONS
from app.web.languages import gettext, lazy_gettext

View = TypeVar("View", bound=Callable[..., Any])
ASK_SUPERADMINS = lazy_gettext(
    "The superadmins of this service write the rules. Ask them for access."
)


@dataclass(frozen=True)
class AccountScope:
    """An account, and the caller acting in it."""

    account: AccountRef
    by: Principal

    @property
    def url_args(self) -> UrlArgs:
        """The arguments of `url_for` for pages of this account."""
        return {"account_id": self.account.id}

    def allowed_operations(self, collection: Definition) -> list[str]:
        """The operations that the rules allow the caller on at least some records."""
        return [name for name in OPERATIONS if access.is_open(self.by, collection, name)]

    def access(self, collection: Definition, operation: str) -> Access | None:
        """The caller's access for an operation; None if the rules forbid it."""
        try:
            return access.for_operation(self.by, collection, operation)
        except Forbidden:
            return None


@dataclass(frozen=True)
class OwnAccountScope(AccountScope):
    """The caller's own account, which addresses do not name."""

    @property
    def url_args(self) -> UrlArgs:
        return {}


@dataclass(frozen=True)
class CollectionScope(AccountScope):
    collection: Definition

    @property
    def requires_signature(self) -> bool:
        """Whether changes of its records require an electronic signature."""
        return bool(self.collection.options.get("require_signature"))

    @property
    def signer(self) -> str:
        """The caller's email address if the caller belongs to this account, else empty."""
        is_member = self.by.home is not None and self.by.home.id == self.account.id
        return self.by.email or "" if is_member else ""

    @property
    def url_args(self) -> UrlArgs:
        """The arguments of `url_for` for pages of this collection."""
        return {"account_id": self.account.id, "name": self.collection.name}


def account_scope(account_id: str) -> AccountScope:
    """An admin's own account, or for superadmins any active one. Raises NotFound."""
    caller, account_id = guard.require_caller(), account_id.lower()
    if not caller.is_superadmin and account_id != guard.own_account_id():
        raise NotFound
    if caller.home and not caller.is_superadmin:  # the guard has just verified it
        return AccountScope(caller.home, caller.acting_in(caller.home))
    account = principals.reload_active_account(account_id)
    if account is None:
        navigation.forget_account(account_id)
        raise NotFound(gettext("No active account with this id."))
    navigation.enter_account(account.id, account.name)
    return AccountScope(account, caller.acting_in(account))


def account_or_own_scope(account_id: str | None) -> AccountScope:
    """The account with this id, or the caller's own if none is given. Raises NotFound."""
    if account_id is not None:
        return account_scope(account_id)
    caller = guard.require_caller()
    home, _ = caller.home_and_user()
    return OwnAccountScope(home, caller)


def collection_scope(account_id: str, name: str) -> CollectionScope:
    """A collection within an account. Raises NotFound."""
    scope = account_scope(account_id)
    return CollectionScope(scope.account, scope.by, definitions.get(name.replace("\0", "")))


def injected(view: View) -> View:
    """The view, called with the scope of its address if it has a parameter `scope`.

    Its `url_args` are the arguments of the address that it takes. Views that call each other pass
    the scope themselves.
    """
    names = inspect.signature(view).parameters.keys()
    if "scope" not in names or hasattr(view, "url_args"):
        return view
    of_collection = view.__annotations__["scope"] == CollectionScope.__name__

    @wraps(view)
    def run(*args: object, **url_args: Any) -> object:
        if args:
            return view(*args, **url_args)
        account_id = url_args.pop("account_id", None)
        if of_collection:
            return view(collection_scope(account_id, url_args.pop("name")), **url_args)
        return view(account_or_own_scope(account_id), **url_args)

    found: Any = run
    found.url_args = {*names, "account_id", *(("name",) if of_collection else ())}
    return found  # type: ignore[no-any-return]
