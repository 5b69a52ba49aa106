"""In which account a page of records is, for whom, and what the collection opens there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.auth import principal as principals
from app.auth.principal import AccountRef, Principal
from app.collections import access, definition
from app.collections.access import Access
from app.collections.definition import Definition
from app.console.shell import guard
from app.errors import Forbidden, NotFound
from app.rules import OPERATIONS

WHOM_TO_ASK = "The rules are written by the superadmins of this service: ask them to open it."


@dataclass(frozen=True)
class Place:
    """An account, and the caller acting in it."""

    account: AccountRef
    by: Principal

    @property
    def at(self) -> dict[str, Any]:
        """The place in addresses."""
        return {"account_id": self.account.id}

    def opened(self, collection: Definition) -> list[str]:
        """The operations that are open to the caller, at least for some records."""
        return [one for one in OPERATIONS if access.is_open(self.by, collection, one)]

    def access(self, collection: Definition, operation: str) -> Access | None:
        """What an operation opens; None where it is closed."""
        try:
            return access.for_operation(self.by, collection, operation)
        except Forbidden:
            return None


@dataclass(frozen=True)
class Home(Place):
    """The caller's own account, which addresses need not name."""

    @property
    def at(self) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Shelf(Place):
    """A collection within an account."""

    collection: Definition

    @property
    def demands_signature(self) -> bool:
        """Whether its records are changed with an electronic signature only."""
        return bool(self.collection.options.get("require_signature"))

    @property
    def signer(self) -> str:
        """The address of the caller, where it is one of this account, and so may sign here."""
        at_home = self.by.home is not None and self.by.home.id == self.account.id
        return self.by.email or "" if at_home else ""

    @property
    def at(self) -> dict[str, Any]:
        """The collection in addresses."""
        return {"account_id": self.account.id, "name": self.collection.name}


def found(account_id: str) -> Place:
    """The place in an account: an admin's own, for superadmins any active one. Raises NotFound."""
    caller, account_id = guard.known_caller(), account_id.lower()
    if not caller.is_superadmin and account_id != guard.own_account():
        raise NotFound
    account = principals.reload_active_account(account_id)
    if account is None:
        raise NotFound("There is no such active account.")
    return Place(account, caller.acting_in(account))


def of(account_id: str | None) -> Place:
    """The account that an address names, the caller's own where it names none. Raises NotFound."""
    if account_id is not None:
        return found(account_id)
    caller = guard.known_caller()
    home, _ = caller.home_and_user()
    return Home(home, caller)


def shelf(account_id: str, name: str) -> Shelf:
    """A collection within an account. Raises NotFound."""
    place = found(account_id)
    return Shelf(place.account, place.by, definition.get(name.replace("\0", "")))
