"""JSON Web Tokens and other random tokens (contract section 3)."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from functools import lru_cache

import jwt
from jwt.algorithms import HMACAlgorithm

from app import clock, config
from app.errors import Unauthorized
from app.ids import first_id, new_id
from app.types import JSONObject

ALGORITHM = "HS256"
ACCESS, REFRESH = "access", "refresh"
REQUIRED = ["exp", "iat", "iss", "jti", "sub", "type", "account_id"]
HEADERS = {"alg", "typ", "kid"}
MAX_CACHED = 2000
Claims = JSONObject


class _Algorithm(HMACAlgorithm):
    """PyJWT's HMAC algorithm with a cached check of the key."""

    prepare_key = lru_cache(HMACAlgorithm.prepare_key)


jwt.unregister_algorithm(ALGORITHM)
jwt.register_algorithm(ALGORITHM, _Algorithm(_Algorithm.SHA256))


def digest(secret: str) -> str:
    """The SHA-256 hex digest under which a random secret is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def random_token(account_code: str) -> str:
    """A random token of 32 bytes, prefixed with the account code for a keyed look-up."""
    return f"{account_code}-{secrets.token_urlsafe(32)}"


def access(
    *,
    user_id: str,
    account_id: str,
    email: str,
    role: str,
    session_id: str | None = None,
    authenticated_at: datetime | None = None,
    valid_from: datetime | None = None,
) -> str:
    """A signed access token that ends with its session.

    `authenticated_at` becomes `auth_time`. The token's id sorts after `valid_from`.
    """
    lifetime = timedelta(minutes=config.current().access_token_expire_minutes)
    claims: Claims = {"sub": user_id, "account_id": account_id}
    claims |= {"email": email, "role": role}
    if session_id:
        claims["sid"] = session_id
    if authenticated_at:
        claims["auth_time"] = int(authenticated_at.timestamp())
    return _sign(ACCESS, claims | {"jti": _id_since(valid_from)}, lifetime)


def _id_since(moment: datetime | None) -> str:
    # The clock of the process that revoked older tokens may be ahead of ours.
    id, prefix = new_id(), first_id(moment) if moment else ""
    return id if id >= prefix else f"{prefix}{id[len(prefix) :]}"


def refresh(
    *, user_id: str, account_id: str, session_id: str, lifetime: timedelta
) -> tuple[str, str]:
    """A signed refresh token of a session, and its `jti`."""
    jti = new_id()
    claims = {"sub": user_id, "account_id": account_id, "jti": jti, "sid": session_id}
    return _sign(REFRESH, claims, lifetime), jti


def read(token: str, type: str) -> Claims:
    """The claims of a valid token of this type. Raises Unauthorized."""
    settings = config.current()
    keys = (settings.secret_key, *settings.secret_key_previous)
    try:
        claims = _verified(token, keys, settings.base_url)
        if claims["exp"] <= clock.now().timestamp():
            raise jwt.ExpiredSignatureError
    except jwt.ExpiredSignatureError as error:
        raise Unauthorized("The token has expired.", error="token_expired") from error
    except (
        jwt.PyJWTError,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Unauthorized("The token is invalid.") from error
    if claims["type"] != type:
        raise Unauthorized("This type of token is not accepted here.")
    return claims


@lru_cache(MAX_CACHED)
def _verified(token: str, keys: tuple[str, ...], issuer: str) -> Claims:
    # Cached per token: the signature never changes, only the expiry is checked every time.
    header = jwt.get_unverified_header(token)
    if not set(header) <= HEADERS or not isinstance(header.get("kid"), str):
        raise Unauthorized("The token was not issued by this service.")
    claims: Claims = jwt.decode(
        token,
        _by_kid(keys)[header["kid"]],
        algorithms=[ALGORITHM],
        issuer=issuer,
        # `iat` may lie in the future, if another process's clock is ahead of ours.
        options={"require": REQUIRED, "strict_aud": True, "verify_iat": False},
    )
    if not _well_typed(claims):
        raise Unauthorized("This type of token is not accepted here.")
    return claims


def _well_typed(claims: Claims) -> bool:
    # PyJWT accepts times as strings, too.
    times = [*REQUIRED[:2], *(["auth_time"] if "auth_time" in claims else [])]
    # Access tokens of older releases carry no session id.
    has_session = claims["type"] == REFRESH or "sid" in claims
    texts = [*REQUIRED[2:], *(["sid"] if has_session else [])]
    return all(isinstance(claims[name], int | float) for name in times) and all(
        isinstance(claims.get(name), str) and claims[name].isprintable() for name in texts
    )


def _sign(type: str, claims: Claims, lifetime: timedelta) -> str:
    now = clock.now()
    claims = claims | {"type": type, "iat": now, "exp": now + lifetime}
    claims["iss"] = config.current().base_url
    key = config.current().secret_key
    return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": _kid(key)})


@lru_cache
def _by_kid(keys: tuple[str, ...]) -> dict[str, str]:
    return {_kid(key): key for key in keys}


@lru_cache
def _kid(key: str) -> str:
    # The key id is a hash that reveals nothing of the key.
    return hashlib.sha256(b"kid:" + key.encode()).hexdigest()[:12]
