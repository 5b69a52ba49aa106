"""Principals of access tokens and console cookies whose sessions are active."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

import sqlalchemy as sa

from app import clock, db
from app.accounts.sign_in_settings import SessionLimits
from app.auth import principal as principals
from app.auth import tokens
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.context import tenancy
from app.db import versioned_cache
from app.db.prepared import PreparedStatement

MAX_CALLERS = 1_000
USE_INTERVAL = timedelta(minutes=5)
"""How often the last use of a console session is recorded."""


def console_principal(secret: str, *, records_use: bool = True) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if its session is active.

    `records_use` is false for what a page requests without its reader: that keeps no session alive.
    """
    account = principals.find_active_account(secret.partition("-")[0])
    if account is None:
        return None
    now = clock.now()
    params = {"_account": account.id, "_hash": tokens.digest(secret), "_now": now}
    with tenancy.in_account(account.id):
        rows = _CONSOLE_SESSION.all(params)
        principal = principals.for_user_verified(account.id, rows[0][1]) if rows else None
    if principal is None:
        return None
    session_id, _, created_at, last_used_at, authenticated_at, mfa = rows[0]
    # Of the verified principal: the account above may be outdated.
    ends_at = principal.session_limits.ends_at(created_at, last_used_at)
    if ends_at <= now:
        return None
    if records_use and now - last_used_at >= USE_INTERVAL:
        _record_use(account.id, session_id, now)
    auth_time = (authenticated_at or created_at).timestamp()
    return _in_session(principal, session_id, ends_at, auth_time, mfa), session_id


@lru_cache(MAX_CALLERS)
def _in_session(
    principal: Principal, session_id: str, ends_at: datetime, auth_time: float, mfa: bool
) -> Principal:
    # One object for all requests of a session: what is memoized by caller, such as access, lasts.
    return replace(
        principal, session_id=session_id, session_ends_at=ends_at, auth_time=auth_time, mfa=mfa
    )


def _record_use(account_id: str, session_id: str, now: datetime) -> None:
    # Concurrent requests record it once: on SQLite, writers wait for each other.
    params = {"_account": account_id, "_id": session_id, "_used": now}
    with tenancy.in_account(account_id), db.transaction():
        _RECORD_USE.run(params | {"_before": now - USE_INTERVAL})


def token_principal(claims: Claims) -> Principal | None:
    """The principal of an access token, if its session is active.

    Cached under the user's version, which grows when a session ends: checking the version checks
    the session, too. Its end by age or disuse needs no query either: it is cached.
    """
    key = (
        claims["account_id"],
        claims["sub"],
        claims.get("sid"),
        claims.get("auth_time"),
        claims.get("mfa"),
    )
    cache = versioned_cache.cache("sessions")
    caller = cache.get(key, lambda: _load(*key))
    if caller is not None and _has_ended(caller):
        with versioned_cache.reloading():  # it may have been used since
            return cache.get(key, lambda: _load(*key))
    return caller


def _load(
    account_id: str,
    user_id: str,
    session_id: str | None,
    auth_time: float | None,
    mfa: bool | None,
) -> Principal | None:
    # The user's version first, then the session: a session that ends in between is noticed.
    principal = principals.for_user(account_id, user_id)
    if principal is None:
        return None
    # Tokens of older releases carry no session id.
    ends_at = None
    if session_id is not None:
        ends_at = session_end(account_id, user_id, session_id, principal.session_limits)
        if ends_at is None:
            return None
    return replace(
        principal,
        session_id=session_id,
        session_ends_at=ends_at,
        auth_time=auth_time,
        mfa=bool(mfa),
    )


def _has_ended(caller: Principal) -> bool:
    """Whether the caller's session has reached its end since the principal was cached."""
    return caller.session_ends_at is not None and caller.session_ends_at <= clock.now()


def session_end(
    account_id: str, user_id: str, session_id: str, limits: SessionLimits
) -> datetime | None:
    """When a user's session ends unless it is used; None if it has ended or was revoked."""
    params = {"_account": account_id, "_user": user_id, "_id": session_id}
    with tenancy.in_account(account_id):
        rows = _ACTIVE_SESSION.all(params)
    ends_at = limits.ends_at(*rows[0]) if rows else None
    return ends_at if ends_at and ends_at > clock.now() else None


_SESSIONS = SignInSession.__table__
_CONSOLE_COLUMNS = ("id", "user_id", "created_at", "last_used_at", "authenticated_at", "mfa")
_CONSOLE_SESSION = PreparedStatement(
    sa.select(*(_SESSIONS.c[name] for name in _CONSOLE_COLUMNS))
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.kind == sa.literal_column("'console'"))
    .where(_SESSIONS.c.token_hash == sa.bindparam("_hash"), _SESSIONS.c.revoked_at.is_(None))
    .where(_SESSIONS.c.expires_at > sa.bindparam("_now")),
    keyed=True,
)
_ACTIVE_SESSION = PreparedStatement(
    sa.select(_SESSIONS.c.created_at, _SESSIONS.c.last_used_at)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"), _SESSIONS.c.user_id == sa.bindparam("_user"))
    .where(_SESSIONS.c.revoked_at.is_(None)),
    keyed=True,
)
_RECORD_USE = PreparedStatement(
    sa.update(_SESSIONS)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"))
    .where(_SESSIONS.c.last_used_at <= sa.bindparam("_before"))
    .values(last_used_at=sa.bindparam("_used")),
    keyed=True,
)
