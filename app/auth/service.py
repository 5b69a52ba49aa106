"""Signing in and out, by tokens and in the console (contract section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from app import clock, config, db, events
from app.accounts import service as accounts
from app.accounts.models import Account, User
from app.auth import lockout, login_users, passwords, sessions, tokens
from app.auth import principal as principals
from app.auth.login_users import Member
from app.auth.principal import Principal
from app.auth.sessions import Origin
from app.db import versioned_cache
from app.errors import Forbidden, InvalidValues, RecentSignInRequired, Unauthorized, problem
from app.http import rate_limits

log = structlog.get_logger()


@dataclass(frozen=True)
class SignIn:
    """A user with a fresh pair of tokens."""

    user: User | Member
    access_token: str
    refresh_token: str


def login(*, account: str | None, email: str, password: str, origin: Origin) -> SignIn:
    """Sign in by password. Raises Unauthorized, alike in answer and time for every failure."""
    return sign_in(check_password(account, email, password, origin), origin)


def sign_in(user: User | Member, origin: Origin) -> SignIn:
    """Begin a session of a user who proved to be that user."""
    return _signed_in(user, sessions.start(user, origin))


def check_password(account: str | None, email: str, password: str, origin: Origin) -> Member:
    """The active, verified user with this password.

    Raises Unauthorized, InvalidValues, or TooManyRequests after too many failures.
    """
    account = require_account(account)
    account_id, user = login_users.find(account, email)
    # The account's slug, code and id are one, and must not give three times the tries.
    with lockout.guesses(account_id or account, email, origin.ip_address):
        return _checked(user, password)


def _checked(user: Member | None, password: str) -> Member:
    fits = passwords.verify(password, user.password_hash if user else None)
    if user is None or not fits or not user.may_sign_in:
        raise sessions.not_right()
    if not user.email_verified:
        raise Unauthorized(
            "Verify your email address first: please check your inbox.", error="email_not_verified"
        )
    return user


def refresh(token: str, named: str | None = None) -> SignIn:
    """Trade a refresh token for a new pair. A token used before ends its whole family.

    Raises Unauthorized, and Forbidden or NotFound where its user may not act in the account that
    is named.
    """
    claims = tokens.read(token, tokens.REFRESH)
    account_id, user_id, session_id = claims["account_id"], claims["sub"], claims["sid"]
    with versioned_cache.reloading():
        caller = principals.of_user(account_id, user_id) if named else None
    if caller is not None:
        principals.choose_account(caller, named)
    with db.transaction() as session:
        family = sessions.rotate(claims)
        user = session.get(User, (account_id, user_id)) if family else None
        if family and user and user.may_sign_in:
            return _signed_in(user, family)
    # In another transaction: this one may hold the session's row, and ending it takes the user's.
    with db.transaction():
        if family:
            sessions.end_family(claims)
        elif sessions.end_reused(claims):
            events.publish(events.RefreshTokenReused(account_id, session_id, clock.now()))
            log.warning("refresh token used again", account=account_id, user=user_id)
    raise Unauthorized("The refresh token is not valid any more.")


def reauthenticate(caller: Principal, password: str) -> SignIn:
    """Prove anew to be the caller: a new pair of tokens of the same session.

    Raises InvalidValues, Forbidden, Unauthorized, or TooManyRequests after too many wrong guesses.
    """
    user = _proved(caller, password)
    with db.transaction():
        sessions.authenticate(caller)
        return _signed_in(user, sessions.renew(caller))


def reauthenticate_in_console(caller: Principal, password: str) -> None:
    """The same for a session of the console, which has no tokens."""
    _proved(caller, password)
    sessions.authenticate(caller)


def _proved(caller: Principal, password: str) -> User:
    caller.refuse_key("An API key has no password to give.")
    if caller.session_id is None:
        raise RecentSignInRequired("This token is of no session: sign in anew.")
    user = user_of(caller)
    if user.password_hash is None:
        raise RecentSignInRequired("You have no password here: sign in anew by your provider.")
    if wrong := problems_of_own_password(user, password, "password"):
        raise InvalidValues(wrong)
    return user


def problems_of_own_password(user: User, given: str, field: str) -> list[dict[str, Any]]:
    """What is wrong where this is not the user's password.

    Raises TooManyRequests after too many wrong guesses.
    """
    guesses = lockout.own_password(user)
    rate_limits.check(*guesses)
    fits = passwords.verify(given, user.password_hash)
    lockout.settle(guesses, right=fits)
    wrong = problem(field, "invalid_option", "This is not the present password.")
    return [] if fits else [wrong]


def logout(caller: Principal, refresh_token: str | None, *, cookie: str) -> None:
    """End the session of a refresh token; without one, all sessions of the caller."""
    claims: dict[str, Any] | None
    if refresh_token:
        claims = tokens.read(refresh_token, tokens.REFRESH)
        if claims["sub"] != caller.user_id:
            raise Forbidden("The refresh token belongs to somebody else.")
    else:
        claims = _claims_of_own(caller, cookie)
    if claims:
        sessions.end_family(claims)
    else:
        sessions.end_all(*sessions.user_key(caller))


def _claims_of_own(caller: Principal, cookie: str) -> dict[str, Any] | None:
    # Nobody chose to send the cookie: one from another time or user must keep nobody signed in.
    try:
        claims = tokens.read(cookie, tokens.REFRESH)
    except Unauthorized:
        return None
    return claims if claims["sub"] == caller.user_id else None


def user_of(caller: Principal) -> User:
    """The row of the signed-in caller."""
    return db.db.session.get_one(User, sessions.user_key(caller))


_USER_NAMED = sa.select(User).where(
    User.account_id == sa.select(Account.id).where(principals.IS_NAMED).scalar_subquery(),
    User.email_key == sa.bindparam("email_key"),
)


def user_named(account: str, email: str) -> User | None:
    """The user of that account (slug, code or id) with that address."""
    given = {**principals.naming(account), "email_key": accounts.email_key(email)}
    return db.db.session.scalar(_USER_NAMED, given)


def require_account(account: str | None) -> str:
    """The account that must be named, where there is more than one. Raises InvalidValues."""
    settings = config.current()
    if not account and settings.single_tenant:
        return settings.single_tenant_account
    if not account:
        message = "Name the account: its slug, code or id."
        raise InvalidValues([problem("account", "required", message)])
    return account


def _signed_in(user: User | Member, family: sessions.Family) -> SignIn:
    token = tokens.access(
        user_id=user.id,
        account_id=user.account_id,
        email=user.email,
        role=user.role.name,
        session_id=family.session_id,
        authenticated_at=family.authenticated_at,
        valid_from=user.tokens_valid_from,
    )
    return SignIn(user, token, family.refresh_token)
