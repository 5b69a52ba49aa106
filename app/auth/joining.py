"""Joining an account by its domain: the user is created when the mailed link is followed.

Until then nothing is stored: strangers could fill the account's list with names of its domain. The
link's token is signed, and works until the address has a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from itsdangerous import BadSignature

from app import clock, crypto, db, jobs
from app.accounts import service as accounts
from app.accounts.domains import service as domains
from app.accounts.domains.models import AccountDomain
from app.accounts.models import SYSTEM_ACCOUNT_ID, VIEWER, Account, Role, User
from app.accounts.product import links, mails
from app.accounts.product.settings import LinkKind
from app.auth import mail_tokens
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.context import actor
from app.errors import Conflict
from app.ids import new_id

PURPOSE, FORGOTTEN = "join by domain", "/welcome/forgot-password"


@dataclass(frozen=True)
class Joining:
    """The person who may join an account, until an expiry."""

    account: Account
    email: str
    name: str | None
    role: str
    expires_at: datetime


def open_domain(account: Account | None, email: str) -> AccountDomain | None:
    """The account's domain by which an address may register, if there is one."""
    if account is None or not account.is_active or account.id == SYSTEM_ACCOUNT_ID:
        return None
    domain = domains.find_verified(account.id, email)
    if domain is None or not domain.auto_join:
        return None
    return domain if gate.allows_address(account, email, Proof.PASSWORD) else None


def role_of(domain: AccountDomain) -> str:
    """The name of the role of users who join by a domain."""
    role = db.db.session.scalar(sa.select(Role.name).where(Role.name == domain.role_of_new_users))
    return role or VIEWER


def enqueue_mail(
    account_id: str, email: str, name: str | None, redirect_uri: str | None = None
) -> None:
    """Enqueue a mail with a link to join, in the open transaction."""
    payload = {"email": email, "name": name, "redirect_uri": redirect_uri}
    jobs.enqueue("auth.send_join_link", payload, account_id=account_id)


def find(token: str) -> Joining | None:
    """The joining of a token; None if it is invalid, expired or used, or not allowed any more."""
    try:
        account_id, email, name, expires_at, *page = crypto.unsign(token, PURPOSE)
    except BadSignature:
        return None
    account, until = db.db.session.get(Account, account_id), clock.parse(expires_at)
    domain = open_domain(account, email)
    if account is None or domain is None or until <= clock.now():
        return None
    # The list may have changed since the mail was sent.
    if any(page) and not links.may_receive(account, page[0], None):
        return None
    key = accounts.email_key(email)
    if _user(account_id, key) is not None or accounts.was_deleted(account_id, key):
        return None
    return Joining(account, email, name, role_of(domain), until)


def create_user(joining: Joining, password_hash: str) -> User:
    """Create the user, in the open transaction. Raises BadRequest if it exists by now."""
    id = new_id()
    actor.act_as(id, joining.email, None)
    try:
        with db.savepoint():
            return accounts.create_user(
                joining.account.id,
                email=joining.email,
                name=joining.name,
                password_hash=password_hash,
                role=joining.role,
                id=id,
                # The link was mailed, so its holder reads the mail of this address.
                email_verified=True,
                email_verified_at=clock.now(),
            )
    except Conflict:
        raise mail_tokens.invalid_token() from None


@jobs.job("auth.send_join_link", mails=True)
def _mail_link(payload: Mapping[str, str | None]) -> None:
    account_id, email = str(payload["account_id"]), str(payload["email"])
    account = db.db.session.get(Account, account_id)
    user = _user(account_id, accounts.email_key(email))
    if account is None or not account.is_active:
        return
    if user is not None:
        _notify(user)
    elif not accounts.was_deleted(account_id, accounts.email_key(email)):
        expires = clock.now() + mail_tokens.LIFETIME
        page = links.page(LinkKind.RESET_PASSWORD, account, None, payload.get("redirect_uri"))
        signed = [account_id, email, payload["name"], clock.iso(expires), page.redirect_uri]
        token = crypto.sign(signed, PURPOSE)
        link = page.address(token)
        mails.send(
            "reset_password", email, account.id, account=account.name, link=link, expires=expires
        )


def enqueue_notice(account_id: str, email: str) -> None:
    """Enqueue a mail to a user that somebody tried to register with the address."""
    payload = {"email_key": accounts.email_key(email)}
    jobs.enqueue("auth.known_already", payload, account_id=account_id)


@jobs.job("auth.known_already", mails=True)
def _mail_known_already(payload: Mapping[str, str]) -> None:
    user = _user(payload["account_id"], payload["email_key"])
    if user is not None:
        _notify(user)


def _notify(user: User) -> None:
    if user.may_sign_in:
        page = links.page(LinkKind.SIGN_IN, user.account, user.id, default=FORGOTTEN)
        link, account = page.address(), user.account.name
        mails.send(
            "already_registered", user.email, user.account_id, account=account, user=user, link=link
        )


def _user(account_id: str, email_key: str) -> User | None:
    same = (User.account_id == account_id, User.email_key == email_key)
    return db.db.session.scalar(sa.select(User).where(*same))
