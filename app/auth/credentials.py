"""Principals of access tokens and console cookies whose sessions are active."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sa

from app import clock, config
from app.auth import principal as principals
from app.auth import tokens
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.auth.tokens import Claims
from app.context import tenancy
from app.db import versioned_cache
from app.db.prepared import PreparedStatement


def console_principal(secret: str) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if its session is active."""
    account = principals.find_active_account(secret.partition("-")[0])
    if account is None:
        return None
    now = clock.now()
    earliest = now - timedelta(days=config.current().session_max_days)
    params = {
        "_account": account.id,
        "_hash": tokens.digest(secret),
        "_now": now,
        "_first": earliest,
    }
    with tenancy.in_account(account.id):
        rows = _CONSOLE_SESSION.all(params)
        principal = principals.for_user_verified(account.id, rows[0][1]) if rows else None
    if principal is None:
        return None
    session_id, _, created_at, authenticated_at, mfa = rows[0]
    auth_time = (authenticated_at or created_at).timestamp()
    return replace(principal, session_id=session_id, auth_time=auth_time, mfa=mfa), session_id


def token_principal(claims: Claims) -> Principal | None:
    """The principal of an access token, if its session is active.

    Cached under the user's version, which grows when a session ends: checking the version checks
    the session, too.
    """
    key = (
        claims["account_id"],
        claims["sub"],
        claims.get("sid"),
        claims.get("auth_time"),
        claims.get("mfa"),
    )
    return versioned_cache.cache("sessions").get(key, lambda: _load(*key))


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
    if session_id is not None and not session_is_active(account_id, user_id, session_id):
        return None
    return replace(principal, session_id=session_id, auth_time=auth_time, mfa=bool(mfa))


def session_is_active(account_id: str, user_id: str, session_id: str) -> bool:
    """Whether a user's session has not been revoked."""
    params = {"_account": account_id, "_user": user_id, "_id": session_id}
    with tenancy.in_account(account_id):
        return bool(_ACTIVE_SESSION.all(params))


_SESSIONS = SignInSession.__table__
_CONSOLE_COLUMNS = ("id", "user_id", "created_at", "authenticated_at", "mfa")
_CONSOLE_SESSION = PreparedStatement(
    sa.select(*(_SESSIONS.c[name] for name in _CONSOLE_COLUMNS))
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.kind == sa.literal_column("'console'"))
    .where(_SESSIONS.c.token_hash == sa.bindparam("_hash"), _SESSIONS.c.revoked_at.is_(None))
    .where(_SESSIONS.c.expires_at > sa.bindparam("_now"))
    .where(_SESSIONS.c.created_at > sa.bindparam("_first")),
    keyed=True,
)
_ACTIVE_SESSION = PreparedStatement(
    sa.select(_SESSIONS.c.id)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"), _SESSIONS.c.user_id == sa.bindparam("_user"))
    .where(_SESSIONS.c.revoked_at.is_(None)),
    keyed=True,
)
