"""As whom a webhook sees a change: its maker as of now, else any admin of the account."""

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
    """What a webhook is told of records of a collection."""

    definition: Definition
    by: Principal
    include_pii: bool

    @cached_property
    def masked(self) -> frozenset[str]:
        """The fields whose values are masked."""
        may = self.include_pii and PII_GROUP in self.by.groups
        return frozenset() if may else frozenset(self.definition.personal)

    @property
    def holds_pii(self) -> bool:
        """Whether it is told personal data unmasked."""
        return bool(self.definition.personal) and not self.masked

    def access_to(self, event: RecordChanged, row: Any) -> Access | None:
        """What it may view of a row; None where it may not."""
        found: Access | None = event.access_to(self.definition, row, self.by)
        return found

    def hidden(self, access: Access) -> frozenset[str]:
        """The fields that its filter cannot know, as deliveries would tell of them."""
        return self.masked | (self.definition.columns.keys() - access.readable.keys())


def maker_version_checks(account_id: str, makers: Iterable[str]) -> list[VersionCheck]:
    """What the open transaction is to check, so that users of the account need no look-up."""
    known: dict[tuple[str, str | None], Any] = db.notes().setdefault(MAKERS, {})
    found: list[VersionCheck] = []
    for user_id in makers:
        maker = principals.for_user(account_id, user_id)
        if maker is not None:
            known[account_id, user_id] = (maker, True)
            found += maker.version_checks
    return found


def is_sent_pii(webhook: Any) -> bool:
    """Whether a webhook is to be sent personal data: its maker is an active member, as of now."""
    if not webhook.include_pii:
        return False
    maker = principals.for_user_in_account(webhook.account_id, webhook.created_by)
    return maker is not None and PII_GROUP in maker.groups


def maker_now(account_id: str, user_id: str | None) -> tuple[Principal | None, bool]:
    """As whom a webhook acts, and whether that is its maker; looked up once in a transaction."""
    known: dict[tuple[str, str | None], Any] = db.notes().setdefault(MAKERS, {})
    if (account_id, user_id) not in known:
        maker = principals.for_user_in_account(account_id, user_id)
        is_maker = maker is not None
        known[account_id, user_id] = (maker or principals.anonymous_admin(account_id), is_maker)
    found: tuple[Principal | None, bool] = known[account_id, user_id]
    return found
