"""JSON Web Tokens and console cookies, the principals of active sessions, other random tokens."""

from __future__ import annotations

import hashlib
import secrets
import string
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType

import flask_jwt_extended
import jwt
import sqlalchemy as sa
from flask import Flask, Response
from flask_jwt_extended import JWTManager
from flask_jwt_extended.exceptions import JWTExtendedException
from jwt.algorithms import HMACAlgorithm

from app import clock, config, db
from app.accounts.models import User
from app.accounts.sign_in_settings import SessionLimits
from app.auth import principal as principals
from app.auth.login_users import LoginUser
from app.auth.models import SignInSession
from app.auth.principal import Principal
from app.context import tenancy
from app.db import versioned_cache
from app.db.prepared import PreparedStatement
from app.errors import Unauthorized
from app.ids import first_id, new_id
from app.types import JSONMapping, JSONObject
from app.web.error_handlers import error_response

ALGORITHM = "HS256"
ACCESS, REFRESH = "access", "refresh"
BEARER = "bearer"
ALPHABET = string.ascii_letters + string.digits
REQUIRED = ["exp", "iat", "iss", "jti", "sub", "type", "account_id"]
HEADERS = {"alg", "typ", "kid"}
NEVER_ISSUED = {"aud", "nbf"}
# `iat` may lie in the future, if another process's clock is ahead of ours. `exp` gets no leeway.
LEEWAY = timedelta(days=1)
MAX_CACHED = 2000
INVALID = "The token is invalid."
Claims = JSONObject

manager = JWTManager()
MAX_CALLERS = 1_000
USE_INTERVAL = timedelta(minutes=5)
"""The time between two updates of a console session's last use."""


class _Algorithm(HMACAlgorithm):
    """PyJWT's HMAC algorithm with a cached check of the key."""

    prepare_key = lru_cache(HMACAlgorithm.prepare_key)


jwt.unregister_algorithm(ALGORITHM)
jwt.register_algorithm(ALGORITHM, _Algorithm(_Algorithm.SHA256))


def init_app(app: Flask, issuer: str) -> None:
    """Set up the tokens of an application."""
    app.config.update(
        JWT_ALGORITHM=ALGORITHM,
        JWT_COOKIE_CSRF_PROTECT=False,  # no token is in a cookie
        JWT_DECODE_ISSUER=issuer,
        JWT_DECODE_LEEWAY=LEEWAY,
        JWT_ENCODE_ISSUER=issuer,
        JWT_ENCODE_NBF=False,
    )
    manager.init_app(app)


def _refused(*_: object) -> Response:
    return error_response(Unauthorized(INVALID))


for on_error in (
    manager.expired_token_loader,
    manager.invalid_token_loader,
    manager.needs_fresh_token_loader,
    manager.revoked_token_loader,
    manager.token_verification_failed_loader,
    manager.unauthorized_loader,
    manager.user_lookup_error_loader,
):
    on_error(_refused)


def digest(secret: str) -> str:
    """The SHA-256 hex digest under which a random secret is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def random_token(account_code: str) -> str:
    """A random token of 32 bytes, prefixed with the account code for a keyed look-up."""
    return f"{account_code}-{secrets.token_urlsafe(32)}"


def random_characters(count: int) -> str:
    """Random letters and digits."""
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


def access(
    user: User | LoginUser,
    *,
    session_id: str | None = None,
    authenticated_at: datetime | None = None,
    mfa: bool = False,
    lifetime: timedelta | None = None,
    more: JSONMapping = MappingProxyType({}),
) -> str:
    """A signed access token that ends with its session.

    `authenticated_at` becomes `auth_time`; `mfa` says that the session passed a second factor.
    The `more` claims have names that no other claim has.
    """
    lifetime = lifetime or timedelta(minutes=config.current().access_token_expire_minutes)
    own = {"account_id": user.account_id, "email": user.email, "role": user.role.name}
    claims: Claims = {**more, **own}
    if session_id:
        claims["sid"] = session_id
    if authenticated_at:
        claims["auth_time"] = int(authenticated_at.timestamp())
    if mfa:
        claims["mfa"] = True
    jti, earliest = new_id(), first_id(user.tokens_valid_from) if user.tokens_valid_from else ""
    if jti < earliest:  # the clock of the process that revoked older tokens is ahead of ours
        jti = f"{earliest}{jti[len(earliest) :]}"
    claims |= {"jti": jti, **_times(lifetime)}
    token: str = flask_jwt_extended.create_access_token(user.id, additional_claims=claims)
    return token


def refresh(
    *, user_id: str, account_id: str, session_id: str, lifetime: timedelta
) -> tuple[str, str]:
    """A signed refresh token of a session, and its `jti`."""
    jti = new_id()
    claims = {"account_id": account_id, "jti": jti, "sid": session_id, **_times(lifetime)}
    return flask_jwt_extended.create_refresh_token(user_id, additional_claims=claims), jti


def _times(lifetime: timedelta) -> Claims:
    now = clock.now()
    return {"iat": now, "exp": now + lifetime}


def read(token: str, type: str) -> Claims:
    """The claims of a valid token of this type. Raises Unauthorized."""
    settings = config.current()
    try:
        keys = (settings.secret_key, *settings.secret_key_previous)
        claims = _verified(token, keys, settings.base_url)
        if claims["exp"] <= clock.now().timestamp():
            raise jwt.ExpiredSignatureError
    except jwt.ExpiredSignatureError as error:
        raise Unauthorized("The token has expired.", error="token_expired") from error
    except (
        jwt.PyJWTError,
        JWTExtendedException,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Unauthorized(INVALID) from error
    if claims["type"] != type:
        raise Unauthorized("This type of token is not accepted here.")
    return claims


@lru_cache(MAX_CACHED)
def _verified(token: str, _keys: tuple[str, ...], _issuer: str) -> Claims:
    # Cached per token, keys and issuer: only the expiry is checked every time.
    claims: Claims = flask_jwt_extended.decode_token(token)
    if not _well_typed(claims):
        raise Unauthorized("This type of token is not accepted here.")
    return claims


@manager.decode_key_loader
def _verification_key(header: JSONObject, claims: Claims) -> str:
    if not set(header) <= HEADERS or not isinstance(header.get("kid"), str):
        raise Unauthorized("The token was not issued by this service.")
    # Before the library adds those that it takes for granted.
    if not claims.keys() >= set(REQUIRED) or claims.keys() & NEVER_ISSUED:
        raise Unauthorized(INVALID)
    settings = config.current()
    return _by_kid((settings.secret_key, *settings.secret_key_previous))[header["kid"]]


@manager.encode_key_loader
def _signing_key(user_id: str) -> str:
    return config.current().secret_key


@manager.additional_headers_loader
def _headers(user_id: str) -> dict[str, str]:
    return {"kid": _kid(config.current().secret_key)}


def _well_typed(claims: Claims) -> bool:
    # PyJWT accepts times as strings, too.
    times = [*REQUIRED[:2], *(["auth_time"] if "auth_time" in claims else [])]
    # Access tokens of older releases carry no session id.
    has_session = claims["type"] == REFRESH or "sid" in claims
    texts = [*REQUIRED[2:], *(["sid"] if has_session else [])]
    if not isinstance(claims.get("mfa", False), bool):
        return False
    return all(isinstance(claims[name], int | float) for name in times) and all(
        isinstance(claims.get(name), str) and claims[name].isprintable() for name in texts
    )


@lru_cache
def _by_kid(keys: tuple[str, ...]) -> dict[str, str]:
    return {_kid(key): key for key in keys}


@lru_cache
def _kid(key: str) -> str:
    # The key id is a hash that reveals nothing of the key.
    return hashlib.sha256(b"kid:" + key.encode()).hexdigest()[:12]


def principal_of(claims: Claims) -> Principal | None:
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
    ends_at = caller.session_ends_at if caller else None
    if ends_at is not None and ends_at <= clock.now():
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


def session_end(
    account_id: str, user_id: str, session_id: str, limits: SessionLimits
) -> datetime | None:
    """The end of a user's session unless it is used; None if it has ended or was revoked."""
    params = {"_account": account_id, "_user": user_id, "_id": session_id}
    with tenancy.in_account(account_id):
        rows = _ACTIVE_SESSION.all(params)
    ends_at = limits.ends_at(*rows[0]) if rows else None
    return ends_at if ends_at and ends_at > clock.now() else None


_SESSIONS = SignInSession.__table__
_ACTIVE_SESSION = PreparedStatement(
    sa.select(_SESSIONS.c.created_at, _SESSIONS.c.last_used_at)
    .where(_SESSIONS.c.account_id == sa.bindparam("_account"))
    .where(_SESSIONS.c.id == sa.bindparam("_id"), _SESSIONS.c.user_id == sa.bindparam("_user"))
    .where(_SESSIONS.c.revoked_at.is_(None)),
    keyed=True,
)


def console_principal(secret: str, *, records_use: bool = True) -> tuple[Principal, str] | None:
    """The principal and session id of a console cookie, if its session is active.

    `records_use` is false for what a page requests without its reader: that keeps no session alive.
    """
    account = principals.find_active_account(secret.partition("-")[0])
    if account is None:
        return None
    now = clock.now()
    params = {"_account": account.id, "_hash": digest(secret), "_now": now}
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
        record_session_use(account.id, session_id, now)
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


def record_session_use(account_id: str, session_id: str, now: datetime) -> None:
    """Note the use of a session."""
    # Concurrent requests record it once: on SQLite, writers wait for each other.
    params = {"_account": account_id, "_id": session_id, "_used": now}
    with tenancy.in_account(account_id), db.transaction():
        _RECORD_USE.run(params | {"_before": now - USE_INTERVAL})


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
