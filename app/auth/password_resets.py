"""Passwords: reset by a mailed link, set by a superadmin, changed by the user."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from app import db, jobs
from app.accounts import pii, users
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.product import links
from app.accounts.product.settings import LinkKind
from app.accounts.types import Problem
from app.auth import (
    api_keys,
    joining,
    lockout,
    mail_tokens,
    passwords,
    sessions,
)
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.auth.models import ApiKey, LinkPurpose, MailedToken
from app.auth.principal import Principal
from app.context import actor, tenancy
from app.errors import InvalidValues

PURPOSE = LinkPurpose.RESET


def request_reset(
    account: str | None, email: str, source: str, redirect_uri: str | None = None
) -> None:
    """Enqueue a reset mail, without revealing whether the user exists, not even by timing.

    `source` is of `lockout.count_mail_request`. Raises InvalidValues for an address that is not on
    the account's list.
    """
    reference = auth.require_account(account)
    links.check_redirect(principals.find_account(reference), redirect_uri)
    payload = {"account": reference, "email": email, "source": source, "redirect_uri": redirect_uri}
    with db.transaction():
        jobs.enqueue("auth.forgot_password", payload, account_id=SYSTEM_ACCOUNT_ID)


def enqueue_mail(user: User) -> None:
    """Enqueue a mail with a link to set a password, in the open transaction."""
    payload = {"user_id": user.id, "caused_by": actor.current().user_id}
    jobs.enqueue("auth.send_reset", payload, account_id=user.account_id)


def send_link(user: User) -> None:
    """Mail a link to set a new password and end all of the user's sessions.

    Raises TooManyRequests, Conflict for a service, or Forbidden for a user who may have no
    password.
    """
    users.require_person(user)
    gate.require_password(user.account, user.email)
    lockout.count_mail(user.account_id, user.email, verified=user.email_verified)
    with db.transaction():
        sessions.end_all(user.account_id, user.id)
        enqueue_mail(user)


def expiry(token: str) -> datetime | None:
    """The expiry of a mailed token; None for an invalid one."""
    row = mail_tokens.find(token, PURPOSE) or joining.find(token)
    return row.expires_at if row else None


def user_for_token(token: str) -> User | joining.Joining | None:
    """The user of a mailed token, or who may join by it; None for an invalid one."""
    row = mail_tokens.find(token, PURPOSE)
    return _user_of(row) if row else joining.find(token)


def api_keys_for_token(token: str) -> list[ApiKey]:
    """The active API keys of a mailed token's user, as a new password does not revoke them.

    Whoever knew the old password may have created them. Empty for an invalid token.
    """
    row = mail_tokens.find(token, PURPOSE)
    return api_keys.list_active(row.account_id, row.user_id) if row else []


def reset(token: str, new_password: str, *, revoke_api_keys: bool = False) -> list[ApiKey]:
    """Set the password with a mailed token. Returns the API keys that are still active.

    A token to join an account creates its user. Raises InvalidValues, BadRequest `invalid_token`,
    or Forbidden for a user who may have none.
    """
    row = mail_tokens.find(token, PURPOSE)
    user_or_none = _user_of(row) if row else None
    if user_or_none is not None:
        gate.require_password(user_or_none.account, user_or_none.email)
    _refuse(passwords.problems_for_user(user_or_none, new_password, "new_password"))
    new = joining.find(token) if row is None else None
    if row is None and new is None:  # before hashing, which is slow
        raise mail_tokens.invalid_token()
    if new is not None:
        _refuse(passwords.problems(new_password, field="new_password", own=(new.email,)))
    password_hash = passwords.hash(new_password)
    with db.transaction():
        if new is not None:
            joining.create_user(new, password_hash)
            return []
        if consumed := mail_tokens.consume(token, PURPOSE):
            user = consumed.user
            # The link was mailed, so its holder reads the mail of this address.
            if not user.email_verified:
                accounts.verify_email(user)
            return _change(user, password_hash, revoke_api_keys=revoke_api_keys)
    raise mail_tokens.invalid_token()


def set_password(user: User, new_password: str, *, by: Principal) -> None:
    """Set a user's password, as superadmins may. Raises InvalidValues or Forbidden.

    Removes the user from `pii_access` unless `by` may act for its members.
    """
    by.require_recent_sign_in()
    _refuse(passwords.problems_for_user(user, new_password, "new_password"))
    password_hash = passwords.hash(new_password)
    with db.transaction() as session:
        user = users.get_for_update(session, user.account_id, user.id)
        pii.remove_untrusted(user, by=by.user_id, reason=pii.NEW_PASSWORD)
        _change(user, password_hash)


def change_own(
    caller: Principal, current: str, new_password: str, *, revoke_api_keys: bool = False
) -> list[ApiKey]:
    """Change the caller's password and end all of the caller's sessions.

    With a second factor, this needs a recent sign-in, which includes it. Returns the API keys that
    are still active. Raises InvalidValues, RecentSignInRequired, Forbidden for a user who may have
    no password, or TooManyRequests after too many wrong current passwords.
    """
    user = auth.get_user(caller)
    gate.require_password(user.account, user.email)
    if gate.needs_factor(user):
        caller.require_recent_sign_in()
    problems = auth.current_password_problems(user, current, "current_password")
    problems += passwords.problems_for_user(user, new_password, "new_password")
    _refuse(problems)
    return _change(user, passwords.hash(new_password), revoke_api_keys=revoke_api_keys)


def _change(user: User, password_hash: str, *, revoke_api_keys: bool = False) -> list[ApiKey]:
    account_id, user_id = user.account_id, user.id
    with db.transaction():
        users.set_password(user, password_hash)
        lockout.forget_guesses(account_id, user.email)
        if revoke_api_keys:  # last: the row lock has ended concurrent creations
            api_keys.revoke_all(account_id, user_id)
        # Whoever knew the old password may have requested a pending email change.
        mail_tokens.revoke(user, PURPOSE, LinkPurpose.EMAIL_CHANGE, LinkPurpose.MAGIC_LINK)
    return api_keys.list_active(account_id, user_id)


def _user_of(token: MailedToken) -> User:
    return db.db.session.get_one(User, (token.account_id, token.user_id))


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidValues(problems)


@jobs.job("auth.forgot_password", mails=True)
def _mail_forgotten(payload: Mapping[str, str]) -> None:
    user = auth.find_user(payload["account"], payload["email"])
    if user is not None:
        with tenancy.in_account(user.account_id):  # whose mail it is
            _mail_reset({**payload, "account_id": user.account_id, "user_id": user.id})


@jobs.job("auth.send_reset", mails=True)
def _mail_reset(payload: Mapping[str, str]) -> None:
    user = db.db.session.scalar(
        sa.select(User).where(
            User.account_id == payload["account_id"], User.id == payload["user_id"]
        )
    )
    if user is not None and user.may_sign_in and gate.allows(user, Proof.PASSWORD):
        mail_tokens.mail_link(user, LinkKind.RESET_PASSWORD, PURPOSE, payload)
