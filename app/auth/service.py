"""Signing in and out, with tokens and in the console."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
import structlog

from app import clock, config, db, events
from app.accounts import attributes, users
from app.accounts import service as accounts
from app.accounts.models import Account, User
from app.accounts.types import Problem
from app.auth import devices, lockout, login_users, passwords, sessions, tokens
from app.auth import principal as principals
from app.auth.devices import Origin
from app.auth.login_users import LoginUser
from app.auth.mfa import gate
from app.auth.mfa import service as mfa
from app.auth.mfa.challenges import Challenge, Step
from app.auth.mfa.gate import Proof
from app.auth.mfa.service import Answer
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.db import versioned_cache
from app.errors import Forbidden, InvalidValues, RecentSignInRequired, Unauthorized, problem
from app.web import rate_limits

log = structlog.get_logger()


@dataclass(frozen=True)
class SignIn:
    """A user with a new pair of tokens."""

    user: User | LoginUser
    access_token: str
    refresh_token: str
    expires_in: int
    """Seconds until the access token expires."""


def login(*, account: str | None, email: str, password: str, origin: Origin) -> SignIn:
    """Sign in by password. Raises Unauthorized, with the same message and timing every time."""
    user = check_password(account, email, password, origin)
    return sign_in(user, origin, Proof.PASSWORD)


def sign_in(
    user: User | LoginUser, origin: Origin, proof: Proof, passed: Challenge | None = None
) -> SignIn:
    """Start a session for an authenticated user. Raises as `gate.check`."""
    return _issue_tokens(user, sessions.start(user, origin, proof, passed))


def check_password(account: str | None, email: str, password: str, origin: Origin) -> LoginUser:
    """The active, verified user with this password.

    Raises Unauthorized, InvalidValues, or TooManyRequests after too many failures.
    """
    account = require_account(account)
    account_id, user = login_users.find(account, email)
    # Counts under the id: slug, code and id together must not allow three times the tries.
    with (
        lockout.publishing_failures(account_id, user.id if user else None, email),
        lockout.limit_guesses(
            account_id or account,
            email,
            origin.ip_address,
            devices.known_id(origin.device, account_id, user.id if user else None),
        ),
    ):
        matches = passwords.verify(password, user.password_hash if user else None)
        if user is None or not matches or not user.may_sign_in:
            raise sessions.authentication_failed()
        if not user.email_verified:
            raise Unauthorized(
                "Verify your email address first. Check your inbox for the link.",
                error="email_not_verified",
            )
        gate.require_allowed(user, Proof.PASSWORD)
        stored = user.password_hash or ""
        if renewed := passwords.new_hash(password, stored):
            users.replace_hash(user.account_id, user.id, stored, renewed)
            user.password_hash = renewed
        return user


def refresh(token: str, account: str | None = None) -> SignIn:
    """Exchange a refresh token for a new pair. A reused token ends its whole family.

    Raises Unauthorized, or Forbidden or NotFound if the user may not act in `account`.
    """
    claims = tokens.read(token, tokens.REFRESH)
    account_id, user_id, session_id = claims["account_id"], claims["sub"], claims["sid"]
    with versioned_cache.reloading():
        caller = principals.for_user(account_id, user_id) if account else None
    if caller is not None:
        principals.choose_account(caller, account)
    with db.transaction() as session:
        family = sessions.rotate(claims)
        user = session.get(User, (account_id, user_id)) if family else None
        if family and user and user.may_sign_in:
            return _issue_tokens(user, family)
    # In a new transaction: this one may hold the session's row lock, and ending takes the user's.
    with db.transaction():
        if family:
            sessions.end_family(claims)
        elif sessions.end_reused(claims):
            events.publish(events.RefreshTokenReused(account_id, session_id, clock.now()))
            log.warning("refresh token used again", account=account_id, user=user_id)
    raise Unauthorized("The refresh token is no longer valid.")


def reauthenticate(caller: Principal, password: str | None, answer: Answer | None) -> SignIn:
    """Reauthenticate: a new pair of tokens for the same session.

    By password, or for a user with a second factor by that, too; without a password by the second
    factor alone. Raises InvalidValues, Forbidden, Unauthorized, or TooManyRequests after too many
    failures.
    """
    user, has_factor = _reauthenticated_user(caller, password, answer)
    with db.transaction():
        sessions.authenticate(caller, mfa=has_factor)
        return _issue_tokens(user, sessions.renew(caller))


def reauthenticate_in_console(
    caller: Principal, password: str | None, answer: Answer | None
) -> None:
    """Reauthenticate a console session, which has no tokens."""
    _, has_factor = _reauthenticated_user(caller, password, answer)
    sessions.authenticate(caller, mfa=has_factor)


def _reauthenticated_user(
    caller: Principal, password: str | None, answer: Answer | None
) -> tuple[User, bool]:
    """Check password and second factor; return the user, and whether there is a second factor."""
    if caller.session_id is None:
        raise RecentSignInRequired("This token has no session. Sign in again.")
    user = get_user(caller)
    needs_factor, has_password = gate.needs_factor(user), gate.has_password(user)
    if not has_password and not needs_factor:
        raise RecentSignInRequired("You have no password here. Sign in again with your provider.")
    missing = [
        problem(name, "required", message)
        for name, message, is_missing in (
            ("password", "Confirm your password.", has_password and password is None),
            ("method", "Confirm your second factor, too.", needs_factor and answer is None),
        )
        if is_missing
    ]
    if missing:
        raise InvalidValues(missing)
    if has_password and (wrong := current_password_problems(user, password or "", "password")):
        raise InvalidValues(wrong)
    if needs_factor and answer is not None:
        mfa.prove_again(user, answer, Step.REAUTHENTICATION)
    return user, needs_factor


def current_password_problems(user: User, password: str, field: str) -> list[Problem]:
    """The problem if this is not the user's current password; else an empty list.

    Raises TooManyRequests after too many failures.
    """
    limits = lockout.own_password_limits(user)
    rate_limits.check(*limits)
    matches = passwords.verify(password, user.password_hash)
    if not matches:
        lockout.publish_failure(user, "wrong_password")
    lockout.record_guess(limits, right=matches)
    wrong = problem(field, "invalid_option", "The current password is wrong.")
    return [] if matches else [wrong]


def logout(
    caller: Principal, refresh_token: str | None, *, cookie: str, everywhere: bool = False
) -> None:
    """End the session of a refresh token, else that of the access token that was sent.

    An access token of an earlier release has no session: then that of the cookie, else all.
    `everywhere` ends all. Raises Unauthorized or Forbidden.
    """
    if everywhere:
        caller.refuse_key("API keys cannot do this.")
        sessions.end_all(*sessions.user_key(caller))
        return
    claims: Claims | None = None
    if refresh_token:
        claims = tokens.read(refresh_token, tokens.REFRESH)
        if claims["sub"] != caller.user_id:
            raise Forbidden("The refresh token belongs to another user.")
    elif caller.session_id is None:
        # Browsers send cookies by themselves: an invalid or foreign one must not prevent a logout.
        with suppress(Unauthorized):
            of_cookie = tokens.read(cookie, tokens.REFRESH)
            claims = of_cookie if of_cookie["sub"] == caller.user_id else None
    if claims is not None:
        sessions.end_family(claims)
    elif caller.session_id is not None:
        sessions.end(*sessions.user_key(caller), caller.session_id)
    elif caller.api_key_id is None:
        sessions.revoke(*sessions.user_key(caller))


def get_user(caller: Principal) -> User:
    """The user row of a signed-in caller."""
    return db.db.session.get_one(User, sessions.user_key(caller))


_FIND_ACCOUNT_ID = sa.select(Account.id).where(principals.MATCHES_REFERENCE)


def find_user(account: str, email: str) -> User | None:
    """The user of an account (slug, code or id) with this email address."""
    account_id = db.db.session.scalar(_FIND_ACCOUNT_ID, principals.reference_params(account))
    # An unknown account costs the same look-up, in no account.
    key = (User.account_id == (account_id or ""), User.email_key == accounts.email_key(email))
    return db.db.session.scalar(sa.select(User).where(*key))


def require_account(account: str | None) -> str:
    """The account reference, or the single tenant's. Raises InvalidValues if it is missing."""
    settings = config.current()
    if not account and settings.single_tenant:
        return settings.single_tenant_account
    if not account:
        message = "Specify the account by slug, code or id."
        raise InvalidValues([problem("account", "required", message)])
    return account


def _issue_tokens(user: User | LoginUser, family: sessions.Family) -> SignIn:
    longest = timedelta(minutes=config.current().access_token_expire_minutes)
    lifetime = min(longest, family.expires_at - clock.now())
    token = tokens.access(
        user,
        session_id=family.session_id,
        authenticated_at=family.authenticated_at,
        mfa=family.mfa,
        lifetime=lifetime,
        more=attributes.claims(user.attributes),
    )
    return SignIn(user, token, family.refresh_token, round(lifetime.total_seconds()))
