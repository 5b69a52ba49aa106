"""Principals of console cookies whose sessions are active."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

import sqlalchemy as sa

from app import clock, db
from app.auth import principal as principals
from app.auth import tokens
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.context import tenancy
from app.db.prepared import PreparedStatement

MAX_CALLERS = 1_000
USE_INTERVAL = timedelta(minutes=5)
"""The time between two updates of a console session's last use."""


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
        record_use(account.id, session_id, now)
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


def record_use(account_id: str, session_id: str, now: datetime) -> None:
    """Note the use of a session."""
    # Concurrent requests record it once: on SQLite, writers wait for each other.
    params = {"_account": account_id, "_id": session_id, "_used": now}
    with tenancy.in_account(account_id), db.transaction():
        _RECORD_USE.run(params | {"_before": now - USE_INTERVAL})


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
_RECORD_USE = PreparedStatement(
    sa.update(_SESSIONS)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"))
    .where(_SESSIONS.c.last_used_at <= sa.bindparam("_before"))
    .values(last_used_at=sa.bindparam("_used")),
    keyed=True,
)
