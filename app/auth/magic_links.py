"""Signing in by a mailed link, where the account allows it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from app import config, db, jobs
from app.accounts import pii, sign_in_settings, users
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.tenants import UNTRUSTED_REDIRECTS
from app.auth import lockout, mail_tokens
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.mail_tokens import LinkRequest
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.auth.models import LinkPurpose
from app.context import tenancy
from app.errors import BadRequest, InvalidValues, problem
from app.outbound import mail
from app.web import urls

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
    if redirect_uri is not None and not _is_listed(row, redirect_uri):
        message = "This address is not on the account's list."
        raise InvalidValues([problem("redirect_uri", "invalid_option", message)])
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
    with db.transaction() as session:
        consumed = mail_tokens.consume(token, PURPOSE)
        if consumed is None:
            raise mail_tokens.invalid_token()
        user, redirect_uri = consumed.user, consumed.redirect_uri
        mail_tokens.revoke(user, PURPOSE)  # the others of this sign-in
        # The account and the groups may have changed since the mail was sent.
        if not gate.allows(user, Proof.MAIL) or not _is_named(user.account, account):
            raise mail_tokens.invalid_token()
        if redirect_uri is not None and not _may_return(session, user, redirect_uri):
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


def _is_listed(account: Account, redirect_uri: str) -> bool:
    return redirect_uri in account.settings.get("allowed_redirect_uris", ())


def _may_return(session: Session, user: User, redirect_uri: str) -> bool:
    """Whether a token of the user may go to this address, whose owner could use it."""
    if not _is_listed(user.account, redirect_uri):
        return False
    if redirect_uri not in user.account.settings.get(UNTRUSTED_REDIRECTS, ()):
        return True
    users.get_for_update(session, user.account_id, user.id)  # serializes with joining pii_access
    return not pii.is_member(user.account_id, user.id)


@jobs.job("auth.send_magic_link", mails=True)
def _mail_link(payload: Mapping[str, str | None]) -> None:
    user = auth.find_user(payload["account"] or "", payload["email"] or "")
    if user is None or not user.may_sign_in or not gate.allows(user, Proof.MAIL):
        return
    redirect_uri = payload["redirect_uri"]
    with db.transaction() as session:
        if redirect_uri is not None and not _may_return(session, user, redirect_uri):
            redirect_uri = None  # to the console instead
        request = LinkRequest(payload.get("source"), redirect_uri)
        token = mail_tokens.issue(user, PURPOSE, request=request)
    page = redirect_uri or f"{config.current().base_url}/console/magic-link"
    values = {"link": urls.with_query(page, {"token": token}), "account": user.account.name}
    with tenancy.in_account(user.account_id):  # whose mail it is
        mail.send(user.email, "magic_link", language=user.language, **values)
