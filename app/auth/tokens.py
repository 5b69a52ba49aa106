"""JSON Web Tokens and other secrets that callers show (contract section 3).

PyJWT, not the Flask extension above it: that one fills in a missing `type`, and reads every token
twice to find its key.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import jwt
from jwt.algorithms import HMACAlgorithm

from app import clock, config
from app.errors import Unauthorized
from app.ids import first_id, new_id

ALGORITHM = "HS256"
ACCESS, REFRESH = "access", "refresh"
REQUIRED = ["exp", "iat", "iss", "jti", "sub", "type", "account_id"]
HEADERS = {"alg", "typ", "kid"}
MOST_VERIFIED = 2000


class _Algorithm(HMACAlgorithm):
    """PyJWT's; what kind of key it is given it asks once, and not for every token."""

    prepare_key = lru_cache(HMACAlgorithm.prepare_key)


jwt.unregister_algorithm(ALGORITHM)
jwt.register_algorithm(ALGORITHM, _Algorithm(_Algorithm.SHA256))


def digest(secret: str) -> str:
    """SHA-256 of a random secret, as stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def random_token(account_code: str) -> str:
    """32 random bytes as text, led by the account's code, so that its look-up is a keyed one."""
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
    """A signed access token, of those that the user has since `valid_from`.

    It ends with its session, and says when somebody last proved to be the user.
    """
    lifetime = timedelta(minutes=config.current().access_token_expire_minutes)
    claims: dict[str, Any] = {"sub": user_id, "account_id": account_id}
    claims |= {"email": email, "role": role}
    if session_id:
        claims["sid"] = session_id
    if authenticated_at:
        claims["auth_time"] = int(authenticated_at.timestamp())
    return _sign(ACCESS, claims | {"jti": _id_since(valid_from)}, lifetime)


def _id_since(moment: datetime | None) -> str:
    # By the clock of the process that ended the tokens before, it may not be that late yet.
    id, first = new_id(), first_id(moment) if moment else ""
    return id if id >= first else f"{first}{id[len(first) :]}"


def refresh(
    *, user_id: str, account_id: str, session_id: str, lifetime: timedelta
) -> tuple[str, str]:
    """A signed refresh token of a session, and its `jti`."""
    jti = new_id()
    claims = {"sub": user_id, "account_id": account_id, "jti": jti, "sid": session_id}
    return _sign(REFRESH, claims, lifetime), jti


def read(token: str, type: str) -> dict[str, Any]:
    """The claims of a token that we signed and that is still valid. Raises Unauthorized."""
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
        raise Unauthorized("The token is not valid.") from error
    if claims["type"] != type:
        raise Unauthorized("The token is not valid here.")
    return claims


@lru_cache(MOST_VERIFIED)
def _verified(token: str, keys: tuple[str, ...], issuer: str) -> dict[str, Any]:
    # Once for each token: what is signed stays signed, and only its time runs out.
    header = jwt.get_unverified_header(token)
    if not set(header) <= HEADERS or not isinstance(header.get("kid"), str):
        raise Unauthorized("The token is not one of ours.")
    claims: dict[str, Any] = jwt.decode(
        token,
        _by_kid(keys)[header["kid"]],
        algorithms=[ALGORITHM],
        issuer=issuer,
        # Another process's clock may be ahead, or ours have been set back: it is one of ours still.
        options={"require": REQUIRED, "strict_aud": True, "verify_iat": False},
    )
    if not _well_typed(claims):
        raise Unauthorized("The token is not valid here.")
    return claims


def _well_typed(claims: dict[str, Any]) -> bool:
    # PyJWT takes a time as text, too.
    times = [*REQUIRED[:2], *(["auth_time"] if "auth_time" in claims else [])]
    # Access tokens from before sessions stood in them have none.
    has_session = claims["type"] == REFRESH or "sid" in claims
    texts = [*REQUIRED[2:], *(["sid"] if has_session else [])]
    return all(isinstance(claims[name], int | float) for name in times) and all(
        isinstance(claims.get(name), str) and claims[name].isprintable() for name in texts
    )


def _sign(type: str, claims: dict[str, Any], lifetime: timedelta) -> str:
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
    # A name for the key that tells nothing of it.
    return hashlib.sha256(b"kid:" + key.encode()).hexdigest()[:12]
