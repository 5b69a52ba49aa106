"""Passwords: forgotten, reset by a mailed link, set by a superadmin, changed by their owner."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from app import config, db, jobs
from app.accounts import pii, users
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import api_keys, lockout, mail_tokens, passwords, sessions
from app.auth import service as auth
from app.auth.models import ApiKey, MailedToken
from app.auth.principal import NO_PASSWORDS, Principal
from app.errors import InvalidValues
from app.outbound import mail

PURPOSE = mail_tokens.RESET


def forgot(account: str | None, email: str) -> None:
    """Mail a link if there is such a user; the caller cannot tell, not even by the time."""
    payload = {"account": auth.require_account(account), "email": email}
    with db.transaction():
        jobs.enqueue("auth.forgot_password", payload, account_id=SYSTEM_ACCOUNT_ID)


def ask(user: User) -> None:
    """Mail a user a link to set a password, as part of the open transaction."""
    jobs.enqueue("auth.send_reset", {"user_id": user.id}, account_id=user.account_id)


def send_link(user: User) -> None:
    """Mail a user a link to set a new password, and end all of the user's sessions.

    Raises TooManyRequests.
    """
    lockout.mailbox(user.account_id, user.email, reset=user.email_verified)
    with db.transaction():
        sessions.end_all(user.account_id, user.id)
        ask(user)


def expiry(token: str) -> datetime | None:
    """When a mailed token expires; None for one that is not valid."""
    found = mail_tokens.find(token, PURPOSE)
    return found.expires_at if found else None


def keys_of(token: str) -> list[ApiKey]:
    """The active API keys of the user whom a mailed token is for; none for one that is not valid.

    A new password does not end them, and they may be of whoever knew the old one.
    """
    found = mail_tokens.find(token, PURPOSE)
    return api_keys.active_of(found.account_id, found.user_id) if found else []


def reset(token: str, new_password: str, *, revoke_api_keys: bool = False) -> list[ApiKey]:
    """Set the password by a mailed token. Returns the user's API keys that are still active.

    Raises InvalidValues, or BadRequest `invalid_token`.
    """
    found = mail_tokens.find(token, PURPOSE)
    owner = _user_of(found) if found else None
    _refuse(passwords.problems_of(owner, new_password, "new_password"))
    if found is None:  # before the hash, which takes its time
        raise mail_tokens.not_valid()
    password_hash = passwords.hash(new_password)
    with db.transaction():
        if used := mail_tokens.use(token, PURPOSE):
            user, _ = used
            # The link came by mail: whoever has it reads the mail of this address.
            if not user.email_verified:
                accounts.verify_email(user)
            return _change(user, password_hash, revoke_api_keys=revoke_api_keys)
    raise mail_tokens.not_valid()


def set_password(user: User, new_password: str, *, by: Principal) -> None:
    """Set a user's password directly, as superadmins may. Raises InvalidValues or Forbidden.

    A member of `pii_access` is none any more, unless `by` may act for members.
    """
    by.require_recent_sign_in()
    _refuse(passwords.problems_of(user, new_password, "new_password"))
    password_hash = passwords.hash(new_password)
    with db.transaction() as session:
        user = users.get_for_update(session, user.account_id, user.id)
        pii.remove_untrusted(user, by=by.user_id, reason=pii.NEW_PASSWORD)
        _change(user, password_hash)


def change_own(
    caller: Principal, current: str, new_password: str, *, revoke_api_keys: bool = False
) -> list[ApiKey]:
    """Change the caller's password, and end all of the caller's sessions.

    Returns the caller's API keys that are still active.
    Raises InvalidValues, or TooManyRequests after too many wrong guesses of the present one.
    """
    caller.refuse_key(NO_PASSWORDS)
    user = auth.user_of(caller)
    found = auth.problems_of_own_password(user, current, "current_password")
    found += passwords.problems_of(user, new_password, "new_password")
    _refuse(found)
    return _change(user, passwords.hash(new_password), revoke_api_keys=revoke_api_keys)


def _change(user: User, password_hash: str, *, revoke_api_keys: bool = False) -> list[ApiKey]:
    account_id, user_id = user.account_id, user.id
    with db.transaction():
        users.set_password(user, password_hash)
        if revoke_api_keys:  # afterwards: whoever made one meanwhile was waited for
            api_keys.revoke_all(account_id, user_id)
        # A change of the address that is waiting may be of whoever knew the old password.
        mail_tokens.end(user, PURPOSE, mail_tokens.EMAIL_CHANGE)
    return api_keys.active_of(account_id, user_id)


def _user_of(token: MailedToken) -> User:
    return db.db.session.get_one(User, (token.account_id, token.user_id))


def _refuse(found: list[dict[str, Any]]) -> None:
    if found:
        raise InvalidValues(found)


@jobs.job("auth.forgot_password", mails=True)
def _mail_forgotten(payload: Mapping[str, Any]) -> None:
    user = auth.user_named(payload["account"], payload["email"])
    if user is not None and (user.email_verified or lockout.takes_unproved(user.email)):
        _mail_reset({"account_id": user.account_id, "user_id": user.id})


@jobs.job("auth.send_reset", mails=True)
def _mail_reset(payload: Mapping[str, Any]) -> None:
    user = db.db.session.scalar(
        sa.select(User).where(
            User.account_id == payload["account_id"], User.id == payload["user_id"]
        )
    )
    if user is None or not user.may_sign_in:
        return
    token = mail_tokens.issue(user, PURPOSE)
    link = f"{config.current().base_url}/console/reset-password?token={quote(token)}"
    mail.send(user.email, "reset", link=link, account=user.account.name)
