"""Which account and providers an email address belongs to, by its domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.accounts import sign_in_settings
from app.accounts.domains import service as domains
from app.accounts.models import Account
from app.context import tenancy
from app.sso import service
from app.sso.models import ProviderSetting


@dataclass(frozen=True)
class Realm:
    """Where users of a domain sign in; without an account for a domain that nobody has proved."""

    account: Account | None = None
    providers: Sequence[ProviderSetting] = ()
    password_sign_in: bool = True

    @property
    def slug(self) -> str | None:
        return self.account.slug if self.account else None


def discover(email: str) -> Realm:
    """Return the account that owns the domain of an address; it says nothing of any user."""
    owner = domains.owner_of(email)
    account, providers = service.list_for_sign_in(owner)
    if account is None:
        return Realm()
    with tenancy.in_account(account.id):
        domain = domains.find_verified(account.id, email)
    sso_only = domain is not None and domain.sso_only
    allows_passwords = sign_in_settings.allows_passwords(account.settings)
    return Realm(account, providers, allows_passwords and not sso_only)
