"""Domains of email addresses: where their users sign in, and changes of them by admins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.accounts import sign_in_settings
from app.accounts.domains import checks
from app.accounts.domains import service as domains
from app.accounts.domains.models import AccountDomain
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.sign_in_settings import MfaMode
from app.accounts.types import Body
from app.auth.principal import Principal
from app.context import tenancy
from app.errors import InvalidValues, NotFound, problem
from app.sso import service
from app.sso.models import ProviderSetting

NO_PROVIDER = "Set up a provider first; otherwise nobody of this domain could sign in."


@dataclass(frozen=True)
class Realm:
    """How users of an account sign in; no account for a domain that nobody has proved."""

    account: Account | None = None
    providers: Sequence[ProviderSetting] = ()
    password: bool = True
    passkey: bool = True
    magic_link: bool = False

    @property
    def slug(self) -> str | None:
        """The slug of the account."""
        return self.account.slug if self.account else None


def discover(email: str) -> Realm:
    """Return the account that owns the domain of an address; it says nothing of any user."""
    account = service.find_active_account(domains.owner_of(email))
    if account is None:
        return Realm()
    with tenancy.in_account(account.id):
        domain = domains.find_verified(account.id, email)
    return _realm(account, sso_only=domain is not None and domain.sso_only)


def of_account(reference: str) -> Realm:
    """Return how users of an active account (slug, code or id) sign in. Raises NotFound."""
    account = service.find_active_account(reference)
    if account is None:
        raise NotFound("There is no such account.")
    return _realm(account, sso_only=False)


def _realm(account: Account, *, sso_only: bool) -> Realm:
    settings = account.settings
    allows_passwords = account.id == SYSTEM_ACCOUNT_ID or sign_in_settings.allows_passwords(
        settings
    )
    return Realm(
        account,
        service.list_enabled(account),
        password=allows_passwords and not sso_only,
        passkey=sign_in_settings.mode(settings) != MfaMode.OFF,
        magic_link=sign_in_settings.allows_magic_links(settings) and not sso_only,
    )


def create(domain: str, *, by: Principal) -> AccountDomain:
    """Add a domain. Raises InvalidValues, Conflict, or Forbidden without a recent sign-in."""
    return domains.create(_authorized(by), domain)


def verify(domain_id: str, *, by: Principal) -> AccountDomain:
    """Prove a domain. Raises as `checks.verify`, or Forbidden without a recent sign-in."""
    return checks.verify(_authorized(by), domain_id)


def change(domain_id: str, body: Body, *, by: Principal) -> AccountDomain:
    """Change a domain's settings. Raises InvalidValues, NotFound, or Forbidden."""
    account_id = _authorized(by)
    if body.get("sso_only") and not service.list_for_sign_in(account_id):
        domains.get(account_id, domain_id)
        raise InvalidValues([problem("sso_only", "invalid_option", NO_PROVIDER)])
    return domains.change(account_id, domain_id, body)


def delete(domain_id: str, *, by: Principal) -> None:
    """Remove a domain. Raises NotFound, or Forbidden without a recent sign-in."""
    domains.delete(_authorized(by), domain_id)


def _authorized(by: Principal) -> str:
    by.require_recent_sign_in()
    return by.require_account_id()
