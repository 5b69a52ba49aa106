"""Whom access tokens and the console's cookies stand for, while their sessions last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, config
from app.auth import principal as principals
from app.auth import tokens
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.context import tenancy
from app.db import versioned_cache
from app.db.prepared import PreparedStatement


def console_caller(secret: str) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if the session is still alive."""
    account = principals.account_named(secret.partition("-")[0])
    if account is None:
        return None
    now = clock.now()
    first = now - timedelta(days=config.current().session_max_days)
    asked = {"_account": account.id, "_hash": tokens.digest(secret), "_now": now, "_first": first}
    with tenancy.in_account(account.id):
        found = _CONSOLE_SESSION.all(asked)
        caller = principals.of_user_now(account.id, found[0][1]) if found else None
    if caller is None:
        return None
    session_id, _, begun, renewed = found[0]
    at = (renewed or begun).timestamp()
    return replace(caller, session_id=session_id, auth_time=at), session_id


def token_caller(claims: Mapping[str, Any]) -> Principal | None:
    """The principal of an access token, while its session lasts.

    Cached under the user's version, which grows when a session ends: what checks the one has
    checked the other.
    """
    key = (claims["account_id"], claims["sub"], claims.get("sid"), claims.get("auth_time"))
    return versioned_cache.cache("sessions").get(key, lambda: _load(*key))


def _load(
    account_id: str, user_id: str, session_id: str | None, auth_time: float | None
) -> Principal | None:
    # First the version of the user, then the session: it cannot end unnoticed in between.
    caller = principals.of_user(account_id, user_id)
    if caller is None:
        return None
    # Tokens that were issued before sessions stood in them have none.
    if session_id is not None and not lasts(account_id, user_id, session_id):
        return None
    return replace(caller, session_id=session_id, auth_time=auth_time)


def lasts(account_id: str, user_id: str, session_id: str) -> bool:
    """Whether a user's session has not been ended."""
    its = {"_account": account_id, "_user": user_id, "_id": session_id}
    with tenancy.in_account(account_id):
        return bool(_LASTING_SESSION.all(its))


_SESSIONS = SignInSession.__table__
_CONSOLE_SESSION = PreparedStatement(
    sa.select(*(_SESSIONS.c[name] for name in ("id", "user_id", "created_at", "authenticated_at")))
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.kind == sa.literal_column("'console'"))
    .where(_SESSIONS.c.token_hash == sa.bindparam("_hash"), _SESSIONS.c.revoked_at.is_(None))
    .where(_SESSIONS.c.expires_at > sa.bindparam("_now"))
    .where(_SESSIONS.c.created_at > sa.bindparam("_first")),
    keyed=True,
)
_LASTING_SESSION = PreparedStatement(
    sa.select(_SESSIONS.c.id)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"), _SESSIONS.c.user_id == sa.bindparam("_user"))
    .where(_SESSIONS.c.revoked_at.is_(None)),
    keyed=True,
)
