"""Verifies ID tokens: signature, audience, nonce and times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from authlib.oidc.core import CodeIDToken
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import KeySet, import_key
from joserfc.jws import JWSRegistry

from app import clock
from app.sso.connections import Connection
from app.sso.oauth import documents, exchange
from app.sso.oauth.discovery import ALGORITHMS
from app.sso.refusals import SignInRefused
from app.types import JSONObject

LEEWAY_SECONDS = 60
LONGEST_TOKEN = 50_000
ANY_TENANT = ("common", "organizations", "consumers")
TENANT = re.compile(r"[0-9a-fA-F-]{36}")
CHECKS = {"iss": "issuer", "aud": "audience", "azp": "audience", "exp": "time", "nbf": "time"}
CHECKS |= {"iat": "time", "nonce": "nonce", "at_hash": "access token", "sub": "subject"}


def verify(connection: Connection, token: Any, nonce: str) -> JSONObject:
    """Return the claims of a token response's ID token. Raises SignInRefused with the check."""
    text = token.get("id_token")
    if not isinstance(text, str) or len(text) > LONGEST_TOKEN:
        raise SignInRefused("ID token", "The provider sent no ID token.")
    decoded = _decode(connection, text)
    try:
        json.dumps(decoded.claims, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # lone surrogates, which databases reject
        raise SignInRefused("claims", "The ID token contains invalid Unicode.") from None
    client_id = connection.config["client_id"]
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        {"aud": {"essential": True, "value": client_id}},
        {"nonce": nonce, "client_id": client_id, "access_token": token.get("access_token")},
    )
    try:
        claims.validate(now=int(clock.now().timestamp()), leeway=LEEWAY_SECONDS)
    except ExpiredTokenError:
        raise SignInRefused("time", "The ID token has expired.") from None
    except (InvalidClaimError, MissingClaimError) as error:
        name = str(getattr(error, "claim", "") or error)
        check = next(
            (CHECKS[claim] for claim in CHECKS if f"'{claim}'" in f"'{name}'{error}"), "claims"
        )
        raise SignInRefused(check, str(error)) from None
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise SignInRefused("claims", f"Invalid ID token: {type(error).__name__}.") from None
    if not isinstance(claims["sub"], str) or not isinstance(claims["iss"], str):
        raise SignInRefused("subject", "The ID token has no subject or issuer.")
    if claims["iss"] not in _issuers(connection, claims):
        raise SignInRefused("issuer", f"The ID token is from {claims['iss']}.")
    return dict(claims)


def _decode(connection: Connection, text: str) -> Any:
    """Verify the signature by the stored keys, then by current ones: providers change theirs."""
    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    address = connection.address("jwks_url")
    error: Exception | None = None
    load: Callable[[Connection, str, documents.Parse], JSONObject | None]
    for load in (documents.load, documents.refresh):
        document = load(connection, address, _parse_keys)
        if document is None:  # refreshed within the last minute
            break
        keys = key_set(document)
        try:
            return jwt.decode(text, keys, registry=registry)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as decode_error:
            error = decode_error
    raise SignInRefused("signature", f"Invalid ID token: {type(error).__name__}.")


def _issuers(connection: Connection, claims: CodeIDToken) -> list[str]:
    issuer = connection.address("issuer")
    if connection.config.get("issuer"):
        return [issuer]
    if connection.provider.name == "google":
        return [issuer, issuer.removeprefix("https://")]
    if connection.provider.name == "microsoft" and connection.tenant in ANY_TENANT:
        # Each directory has its own issuer; `tid` names it.
        tenant = str(claims.get("tid", ""))
        issuers = [issuer.replace(f"/{connection.tenant}/", f"/{tenant}/")]
        return issuers if TENANT.fullmatch(tenant) else []
    return [issuer]


def renew_keys(connection: Connection) -> None:
    """Read a provider's keys now, and store them. Raises Unreachable."""
    documents.read(connection, connection.address("jwks_url"), _parse_keys)


def _parse_keys(document: JSONObject) -> JSONObject:
    key_set(document)
    return {"keys": document["keys"]}


def key_set(document: object) -> KeySet:
    """Return the signing keys of a key set. Raises Unreachable if there are none."""
    listed = document.get("keys") if isinstance(document, dict) else None
    usable = []
    for jwk in listed if isinstance(listed, list) else ():
        # No symmetric keys: anyone who reads the key set could sign with them.
        if not isinstance(jwk, dict) or jwk.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        if jwk.get("use", "sig") != "sig":
            continue
        try:
            key = import_key(jwk)
            key.ensure_kid()
        except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
            continue  # ignore unusable keys (RFC 7517, section 5)
        usable.append(key)
    if not usable:
        raise exchange.Unreachable("The key set contains no usable key.")
    return KeySet(usable)
