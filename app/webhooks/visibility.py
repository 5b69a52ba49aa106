"""Whose view a webhook's payloads show: its owner's, else that of any admin of the account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from app import db
from app.accounts.models import PII_GROUP
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definition import Definition
from app.db.versioned_cache import VersionCheck
from app.events import RecordChanged

MAKERS = "webhooks.makers"


@dataclass(frozen=True)
class Sight:
    """The view that a webhook has of a collection."""

    definition: Definition
    by: Principal
    include_pii: bool

    @cached_property
    def masked(self) -> frozenset[str]:
        """The fields with masked values."""
        may = self.include_pii and PII_GROUP in self.by.groups
        return frozenset() if may else frozenset(self.definition.personal)

    @property
    def holds_pii(self) -> bool:
        """Whether the payload has unmasked personal data."""
        return bool(self.definition.personal) and not self.masked

    def access_to(self, event: RecordChanged, row: object) -> Access | None:
        """The access to a row; None if it is hidden."""
        found: Access | None = event.access_to(self.definition, row, self.by)
        return found

    def hidden(self, access: Access) -> frozenset[str]:
        """The fields that the filter must not know, because deliveries would reveal them."""
        return self.masked | (self.definition.columns.keys() - access.readable.keys())


def maker_version_checks(account_id: str, makers: Iterable[str]) -> list[VersionCheck]:
    """The versions of the owners that the open transaction must check."""
    known: dict[tuple[str, str | None], object] = db.notes().setdefault(MAKERS, {})
    found: list[VersionCheck] = []
    for user_id in makers:
        maker = principals.for_user(account_id, user_id)
        if maker is not None:
            known[account_id, user_id] = (maker, True)
            found += maker.version_checks
    return found


def is_sent_pii(webhook: Any) -> bool:
    """Whether a webhook may receive personal data: its owner is an active member of pii_access."""
    if not webhook.include_pii:
        return False
    maker = principals.for_user_in_account(webhook.account_id, webhook.created_by)
    return maker is not None and PII_GROUP in maker.groups


def maker_now(account_id: str, user_id: str | None) -> tuple[Principal | None, bool]:
    """Whose view a webhook has, and whether that is its owner; cached per transaction."""
    known: dict[tuple[str, str | None], Any] = db.notes().setdefault(MAKERS, {})
    if (account_id, user_id) not in known:
        maker = principals.for_user_in_account(account_id, user_id)
        is_maker = maker is not None
        known[account_id, user_id] = (maker or principals.anonymous_admin(account_id), is_maker)
    found: tuple[Principal | None, bool] = known[account_id, user_id]
    return found
