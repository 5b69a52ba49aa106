"""ID tokens: signed by the provider, for us, for this sign-in, now (contract section 10)."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

from authlib.oidc.core import CodeIDToken
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import Key, KeySet, import_key
from joserfc.jws import JWSRegistry

from app import clock
from app.sso.connections import Connection
from app.sso.oauth import exchange
from app.sso.refusals import SignInRefused
from app.types import JSONObject

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384"]
LEEWAY_SECONDS = 60
LONGEST_TOKEN = 50_000
KEY_SET_SECONDS = 600
MOST_KEY_SETS = 500
ANY_TENANT = ("common", "organizations", "consumers")
TENANT = re.compile(r"[0-9a-fA-F-]{36}")
CHECKS = {"iss": "issuer", "aud": "audience", "azp": "audience", "exp": "time", "nbf": "time"}
CHECKS |= {"iat": "time", "nonce": "nonce", "at_hash": "access token", "sub": "subject"}

_key_sets: dict[str, tuple[float, object]] = {}
_lock = threading.Lock()


def verify(connection: Connection, token: Any, nonce: str) -> JSONObject:
    """The claims of the ID token in a token answer. Raises SignInRefused with the check."""
    text = token.get("id_token")
    if not isinstance(text, str) or len(text) > LONGEST_TOKEN:
        raise SignInRefused("ID token", "The provider gave none.")
    decoded = _decoded(connection, text)
    _check_text(decoded.claims)
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        {"aud": {"essential": True, "value": connection.config["client_id"]}},
        {
            "nonce": nonce,
            "client_id": connection.config["client_id"],
            "access_token": token.get("access_token"),
        },
    )
    _check(claims)
    _check_shape(connection, claims)
    return dict(claims)


def _decoded(connection: Connection, text: str) -> Any:
    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    address = connection.address("jwks_url")
    error: Exception | None = None
    for fresh in (False, True):  # the provider may have changed its keys
        try:
            return jwt.decode(text, _keys(address, fresh=fresh), registry=registry)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as wrong:
            error = wrong
    raise SignInRefused("signature", f"{type(error).__name__} of the ID token.")


def _check_text(claims: object) -> None:
    try:
        json.dumps(claims, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # half of a character, which no database takes
        raise SignInRefused("claims", "The ID token holds what is no text.") from None


def _check(claims: CodeIDToken) -> None:
    try:
        claims.validate(now=int(clock.now().timestamp()), leeway=LEEWAY_SECONDS)
    except ExpiredTokenError:
        raise SignInRefused("time", "The ID token has expired.") from None
    except (InvalidClaimError, MissingClaimError) as error:
        name = str(getattr(error, "claim", "") or error)
        check = next((CHECKS[one] for one in CHECKS if f"'{one}'" in f"'{name}'{error}"), "claims")
        raise SignInRefused(check, str(error)) from None
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise SignInRefused("claims", f"{type(error).__name__} of the ID token.") from None


def _check_shape(connection: Connection, claims: CodeIDToken) -> None:
    if not isinstance(claims["sub"], str) or not isinstance(claims["iss"], str):
        raise SignInRefused("subject", "The ID token names nobody.")
    if claims["iss"] not in _issuers(connection, claims):
        raise SignInRefused("issuer", f"The ID token is of {claims['iss']}.")


def _issuers(connection: Connection, claims: CodeIDToken) -> list[str]:
    issuer = connection.address("issuer")
    if connection.config.get("issuer"):
        return [issuer]
    if connection.provider.name == "google":
        return [issuer, issuer.removeprefix("https://")]
    if connection.provider.name == "microsoft" and connection.tenant in ANY_TENANT:
        # Each directory signs in its own name; the token says which one it is.
        tenant = str(claims.get("tid", ""))
        found = [issuer.replace(f"/{connection.tenant}/", f"/{tenant}/")]
        return found if TENANT.fullmatch(tenant) else []
    return [issuer]


def _keys(address: str, *, fresh: bool) -> KeySet:
    now = clock.now().timestamp()
    kept = None if fresh else _key_sets.get(address)
    if kept is None or kept[0] <= now:
        found = exchange.json_object(exchange.Session().get(address))
        kept = (now + KEY_SET_SECONDS, found)
        with _lock:
            if len(_key_sets) >= MOST_KEY_SETS:
                _key_sets.clear()
            _key_sets[address] = kept
    return key_set(kept[1])


def key_set(found: object) -> KeySet:
    """The keys of a key set that sign. Raises Unreachable where there are none."""
    listed = found.get("keys") if isinstance(found, dict) else None
    found_keys = map(_signing, listed if isinstance(listed, list) else ())
    usable = [key for key in found_keys if key is not None]
    if not usable:
        raise exchange.Unreachable("The key set holds no usable key.")
    return KeySet(usable)


def _signing(listed: object) -> Key | None:
    # No secret keys: whoever reads the key set could sign with them.
    if not isinstance(listed, dict) or listed.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if listed.get("use", "sig") != "sig":
        return None
    try:
        key = import_key(listed)
        key.ensure_kid()
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None  # the others may be good all the same (RFC 7517, section 5)
    return key
