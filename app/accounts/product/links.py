"""The pages that mails lead to: those of the product or the account, or else the service's own.

Whoever owns a page receives the tokens of mailed links. So an account's admins can name addresses
of `allowed_redirect_uris` only, and tokens of superadmins and of members of `pii_access` never go
there, but to pages of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from app import config, db
from app.accounts import pii, users
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.product import settings
from app.accounts.product.settings import LinkKind
from app.errors import InvalidValues, problem

HOSTED = {
    LinkKind.VERIFY_EMAIL: "/auth/verify-email?token={token}",
    LinkKind.RESET_PASSWORD: "/welcome/reset-password?token={token}",
    LinkKind.INVITATION: "/welcome/invitation?token={token}",
    LinkKind.MAGIC_LINK: "/welcome/magic-link?token={token}",
    LinkKind.EMAIL_CHANGE: "/auth/verify-email?token={token}",
    LinkKind.SIGN_IN: "/welcome/sign-in?account={account}",
}
NEW_MEMBER = "pii_access"
"""Instead of a user's id: somebody whom the link lets join `pii_access`."""
NOT_LISTED = "This address is not on the account's list."


@dataclass(frozen=True)
class Page:
    """The page that a mail leads to."""

    link: str
    """With `{token}` and `{account}`."""
    account: str
    """The slug of the account."""
    redirect_uri: str | None = None
    """Its address if it is one of the account's list: only while it is, tokens may go there."""

    def address(self, token: str = "") -> str:
        """The link with this token."""
        parts = {"{token}": quote(token, safe=""), "{account}": quote(self.account, safe="")}
        link = self.link
        for placeholder, value in parts.items():
            link = link.replace(placeholder, value)
        return link


def page(
    kind: LinkKind,
    account: Account,
    user_id: str | None = None,
    redirect_uri: str | None = None,
    *,
    default: str | None = None,
) -> Page:
    """The page for a user of an account, who is None for somebody who has no user yet.

    `redirect_uri` was requested; if it may not get the user's tokens any more, it is passed over.
    `default` is the path of the service's own page, if it is not that of the kind. Superadmins
    always get the service's own page.
    """
    hosted = Page(config.current().base_url + (default or HOSTED[kind]), account.slug)
    if account.id == SYSTEM_ACCOUNT_ID and redirect_uri is None:
        return hosted
    if redirect_uri is not None and may_receive(account, redirect_uri, user_id):
        return Page(with_token(redirect_uri), account.slug, redirect_uri)
    own = settings.load_brand(account.id).links.get(kind)
    if own is not None:
        address = settings.without_placeholders(own)
        if may_receive(account, address, user_id):
            return Page(own, account.slug, address)
    link = settings.load().links.get(kind)
    return Page(link, account.slug) if link else hosted


def with_token(redirect_uri: str) -> str:
    """The link to an address that gets the token in its query."""
    return f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}token={{token}}"


def check_redirect(account: Account | None, redirect_uri: str | None) -> None:
    """Raise InvalidValues for an address that is neither on the account's list nor the product's.

    For registrations the account is the system account.
    """
    listed = account.settings.get("allowed_redirect_uris", ()) if account else ()
    if redirect_uri is not None and not settings.is_listed(redirect_uri, listed):
        raise InvalidValues([problem("redirect_uri", "invalid_option", NOT_LISTED)])


def may_receive(account: Account, redirect_uri: str, user_id: str | None) -> bool:
    """Whether tokens of a user may go to this address, whose owner could use them."""
    if settings.is_listed(redirect_uri, ()):  # the operator's
        return True
    if redirect_uri not in account.settings.get("allowed_redirect_uris", ()):
        return False
    if account.id == SYSTEM_ACCOUNT_ID or user_id == NEW_MEMBER:
        return False
    if user_id is None:
        return True
    # Locked, which serializes with joining pii_access.
    users.get_for_update(db.db.session(), account.id, user_id)
    return not pii.is_member(account.id, user_id)
