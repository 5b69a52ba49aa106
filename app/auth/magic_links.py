"""Signing in by a mailed link, where the account allows it."""

from __future__ import annotations

from collections.abc import Mapping

from app import db, jobs
from app.accounts import service as accounts
from app.accounts import sign_in_settings
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.product import links
from app.accounts.product.settings import LinkKind
from app.auth import lockout, mail_tokens
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.auth.models import LinkPurpose
from app.context import tenancy
from app.errors import BadRequest

PURPOSE = LinkPurpose.MAGIC_LINK


def is_offered(reference: str) -> bool:
    """Whether users of this account (slug, code or id) may sign in by a mailed link."""
    account = principals.find_account(reference)
    return account is not None and _is_allowed(account)


def request_link(
    account: str | None,
    email: str,
    redirect_uri: str | None = None,
    *,
    address: str | None,
    device: str = "",
) -> None:
    """Enqueue the mail, without revealing whether the user exists, not even by timing.

    `device` is the cookie of the device. Raises BadRequest `magic_link_off`, InvalidValues or
    TooManyRequests.
    """
    reference = auth.require_account(account)
    row = principals.find_account(reference)
    if row is None or not _is_allowed(row):
        message = "There is no such account, or its users do not sign in by mailed links."
        raise BadRequest(message, error="magic_link_off")
    links.check_redirect(row, redirect_uri)
    source = lockout.count_mail_request(reference, email, address, device, reset=True)
    payload = {"account": row.id, "email": email, "redirect_uri": redirect_uri, "source": source}
    with db.transaction():
        jobs.enqueue("auth.send_magic_link", payload, account_id=SYSTEM_ACCOUNT_ID)


def find_user(token: str) -> User | None:
    """The user of a valid token, without consuming it."""
    row = mail_tokens.find(token, PURPOSE)
    user = db.db.session.get(User, (row.account_id, row.user_id)) if row else None
    return user if user and gate.allows(user, Proof.MAIL) else None


def consume(token: str, account: str | None = None) -> User:
    """Consume a token: returns its user, whose address is verified now.

    A user who was not verified has no password any more.

    `account` is the one that the request names. Raises BadRequest `invalid_token`.
    """
    with db.transaction():
        consumed = mail_tokens.consume(token, PURPOSE)
        if consumed is None:
            raise mail_tokens.invalid_token()
        user = consumed.user
        mail_tokens.revoke(user, PURPOSE)  # the others of this sign-in
        # The account and the groups may have changed since the mail was sent.
        if not gate.allows(user, Proof.MAIL) or not _is_named(user.account, account):
            raise mail_tokens.invalid_token()
        if not user.email_verified:
            user.password_hash = None  # whoever chose it may be somebody else
            accounts.verify_email(user)
    return user


def _is_allowed(account: Account) -> bool:
    return account.is_active and sign_in_settings.allows_magic_links(account.settings)


def _is_named(account: Account, reference: str | None) -> bool:
    named = principals.find_account(reference) if reference else account
    return named is not None and named.id == account.id


@jobs.job("auth.send_magic_link", mails=True)
def _mail_link(payload: Mapping[str, str | None]) -> None:
    user = auth.find_user(payload["account"] or "", payload["email"] or "")
    if user is None or not user.may_sign_in or not gate.allows(user, Proof.MAIL):
        return
    with tenancy.in_account(user.account_id):  # whose mail it is
        mail_tokens.mail_link(user, LinkKind.MAGIC_LINK, PURPOSE, payload)
