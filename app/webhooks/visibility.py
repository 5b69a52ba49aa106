"""The user whose view a webhook's payloads show: its owner, else any admin of the account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app import db
from app.accounts.models import PII_GROUP
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definitions import Definition
from app.db.versioned_cache import VersionCheck
from app.events import RecordChanged
from app.types import cached_property

MAKERS = "webhooks.makers"


@dataclass(frozen=True)
class View:
    definition: Definition
    by: Principal
    include_pii: bool

    @cached_property
    def masked(self) -> frozenset[str]:
        may_see_pii = self.include_pii and PII_GROUP in self.by.groups
        return frozenset() if may_see_pii else frozenset(self.definition.personal)

    @property
    def holds_pii(self) -> bool:
        """Whether the payload has unmasked personal data."""
        return bool(self.definition.personal) and not self.masked

    def access_to(self, event: RecordChanged, row: object) -> Access | None:
        """The access to a row; None if it is hidden."""
        access: Access | None = event.access_to(self.definition, row, self.by)
        return access

    def hidden(self, access: Access) -> frozenset[str]:
        """The fields that filters must not use, because deliveries would reveal them."""
        return self.masked | (self.definition.columns.keys() - access.readable.keys())


def maker_version_checks(account_id: str, owner_ids: Iterable[str]) -> list[VersionCheck]:
    """The versions of the owners that the open transaction must check."""
    makers_by_user: dict[tuple[str, str | None], object] = db.notes().setdefault(MAKERS, {})
    checks: list[VersionCheck] = []
    for user_id in owner_ids:
        owner = principals.for_user(account_id, user_id)
        if owner is not None:
            makers_by_user[account_id, user_id] = (owner, True)
            checks += owner.version_checks
    return checks


def is_sent_pii(webhook: Any) -> bool:
    """Whether a webhook may receive personal data: its owner is an active member of pii_access."""
    if not webhook.include_pii:
        return False
    maker = principals.for_user_in_account(webhook.account_id, webhook.created_by)
    return maker is not None and PII_GROUP in maker.groups


def maker_now(account_id: str, user_id: str | None) -> tuple[Principal | None, bool]:
    """The principal whose view a webhook has, and whether it is the owner's; cached."""
    makers_by_user: dict[tuple[str, str | None], Any] = db.notes().setdefault(MAKERS, {})
    if (account_id, user_id) not in makers_by_user:
        owner = principals.for_user_in_account(account_id, user_id)
        is_owner = owner is not None
        makers_by_user[account_id, user_id] = (
            owner or principals.anonymous_admin(account_id),
            is_owner,
        )
    result: tuple[Principal | None, bool] = makers_by_user[account_id, user_id]
    return result
