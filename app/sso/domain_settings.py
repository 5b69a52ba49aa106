"""Changing the domains of an account: they decide who signs in, and where."""

from __future__ import annotations

from app.accounts.domains import checks
from app.accounts.domains import service as domains
from app.accounts.domains.models import AccountDomain
from app.accounts.types import Body
from app.auth.principal import Principal
from app.errors import InvalidValues, problem
from app.sso import service

NO_PROVIDER = "Set up a provider first; otherwise nobody of this domain could sign in."


def create(domain: str, *, by: Principal) -> AccountDomain:
    """Add a domain. Raises InvalidValues, Conflict, or Forbidden without a recent sign-in."""
    return domains.create(_authorized(by), domain)


def verify(domain_id: str, *, by: Principal) -> AccountDomain:
    """Prove a domain. Raises as `checks.verify`, or Forbidden without a recent sign-in."""
    return checks.verify(_authorized(by), domain_id)


def change(domain_id: str, body: Body, *, by: Principal) -> AccountDomain:
    """Change a domain's settings. Raises InvalidValues, NotFound, or Forbidden."""
    account_id = _authorized(by)
    if body.get("sso_only") and not service.list_for_sign_in(account_id)[1]:
        domains.get(account_id, domain_id)
        raise InvalidValues([problem("sso_only", "invalid_option", NO_PROVIDER)])
    return domains.change(account_id, domain_id, body)


def delete(domain_id: str, *, by: Principal) -> None:
    """Remove a domain. Raises NotFound, or Forbidden without a recent sign-in."""
    domains.delete(_authorized(by), domain_id)


def _authorized(by: Principal) -> str:
    by.require_recent_sign_in()
    return by.require_account_id()
