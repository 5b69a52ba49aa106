"""Sign-in with OAuth 2.0 and OpenID Connect, by Authlib."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote_plus

import jwt
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.auth import ClientAuth, encode_client_secret_post
from authlib.oauth2.client import OAuth2Client

from app import clock
from app.sso import flows
from app.sso.connections import Claims, Connection, callback_url, group_names
from app.sso.flows import StartedFlow
from app.sso.models import Flow
from app.sso.oauth import exchange, id_tokens
from app.sso.refusals import SignInRefused
from app.types import JSONMapping, JSONObject

APPLE_SECRET = timedelta(minutes=5)
LONGEST_CODE = 4000
EMAIL_CLAIMS = ("email", "email_verified", "xms_edov")


def authorization_url(connection: Connection, started: StartedFlow) -> str:
    """Return the provider's authorization URL for a flow."""
    provider = connection.provider
    extra = {"response_mode": "form_post"} if provider.posts_callback else {}
    extra |= {"nonce": started.flow.nonce} if provider.openid else {}
    for name in ("prompt", "acr_values"):
        if value := connection.config.get(name):
            extra[name] = " ".join(value) if isinstance(value, list) else value
    url, _ = _client(connection, started.flow).create_authorization_url(
        connection.address("authorize_url"),
        state=started.state,
        code_verifier=started.verifier,
        **extra,
    )
    return str(url)


def fetch_claims(connection: Connection, flow: Flow, code: str, user: JSONMapping) -> Claims:
    """Exchange the provider's code for verified claims. Raises SignInRefused.

    `user` is what Apple posts beside the code at the first sign-in; only the name is used.
    """
    if not code or len(code) > LONGEST_CODE:
        raise SignInRefused("code", "The provider sent no code.")
    try:
        token = _client(connection, flow).fetch_token(
            connection.address("token_url"),
            grant_type="authorization_code",
            code=code,
            code_verifier=flows.decrypt(flow.verifier),
        )
    except AuthlibBaseError as error:
        raise SignInRefused("code", f"The provider refused the code: {error.error}") from None
    except (ValueError, TypeError):  # Authlib fails on error fields that are not text
        raise exchange.Unreachable("The response is not a token response.") from None
    if not isinstance(token.get("access_token"), str):
        raise SignInRefused("code", "The provider sent no access token.")
    if not connection.provider.openid:
        return _from_github(connection, token)
    claims = id_tokens.verify(connection, token, flow.nonce)
    mfa = _used_mfa(connection, claims)
    needs_userinfo = bool(connection.config.get("userinfo_url"))
    if connection.provider.discovers:
        wanted = ("email", "email_verified", "name", _groups_claim(connection))
        is_published = connection.address("userinfo_url") != ""
        needs_userinfo = is_published and any(name not in claims for name in wanted)
    if needs_userinfo:
        claims = _with_userinfo(connection, token, claims)
    return replace(_from_openid(connection, claims, user), mfa=mfa)


def _client(connection: Connection, flow: Flow) -> OAuth2Client:
    scopes = connection.config.get("scopes") or connection.provider.scopes
    if connection.provider.discovers:
        scopes = dict.fromkeys(("openid", *scopes))
    return OAuth2Client(
        exchange.Session(),
        client_id=connection.config["client_id"],
        client_secret=client_secret(connection),
        token_endpoint_auth_method=_auth_method(connection),
        scope=" ".join(scopes),
        redirect_uri=flow.callback_url or callback_url(connection),
        code_challenge_method="S256",
    )


def client_auth(connection: Connection) -> ClientAuth:
    """Return how the client authenticates at the token endpoint."""
    client_id, secret = connection.config["client_id"], client_secret(connection)
    return ClientAuth(client_id, secret, _auth_method(connection))


def _auth_method(connection: Connection) -> object:
    return encode_client_secret_post if connection.metadata.accepts_post else _encode_basic


def _encode_basic(
    client: ClientAuth, method: str, uri: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    # Authlib does not encode the two parts (RFC 6749, section 2.3.1).
    parts = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    headers["Authorization"] = f"Basic {b64encode(parts.encode()).decode()}"
    return uri, headers, body


def client_secret(connection: Connection) -> str:
    """Return the client secret; for Apple a JWT signed with its key."""
    settings = connection.config
    if "private_key" not in settings:
        return str(settings.get("client_secret", ""))
    now = clock.now()
    claims = {
        "iss": settings["team_id"],
        "sub": settings["client_id"],
        "aud": connection.address("issuer"),
        "iat": now,
        "exp": now + APPLE_SECRET,
    }
    headers = {"kid": settings["key_id"]}
    return jwt.encode(claims, settings["private_key"], algorithm="ES256", headers=headers)


def _groups_claim(connection: Connection) -> str:
    return str(connection.config.get("groups_claim") or "groups")


def _used_mfa(connection: Connection, claims: JSONMapping) -> bool:
    methods, context = claims.get("amr"), claims.get("acr")
    is_listed = isinstance(methods, list) and "mfa" in methods
    return is_listed or context in connection.config.get("mfa_acr_values", ())


def _with_userinfo(connection: Connection, token: JSONMapping, claims: JSONObject) -> JSONObject:
    userinfo = _get_json(connection.address("userinfo_url"), token)
    if not isinstance(userinfo, dict) or userinfo.get("sub") != claims["sub"]:
        raise SignInRefused("subject", "The user info belongs to another user.")
    if userinfo.get("email") == claims.get("email"):
        return userinfo | claims
    # Take address and verification from the same source.
    source = claims if claims.get("email") else userinfo
    return userinfo | claims | {name: source.get(name) for name in EMAIL_CLAIMS}


def _from_openid(connection: Connection, claims: JSONMapping, user: JSONMapping) -> Claims:
    email, in_directory = claims.get("email"), connection.vouches_for_directory(claims.get("tid"))
    # All names are optional (OpenID Connect Core 1.0, section 5.1); Apple posts the user's once.
    parts = (claims.get("given_name"), claims.get("family_name"))
    composed = " ".join(part.strip() for part in parts if isinstance(part, str)).strip()
    posted = user["name"] if isinstance(user.get("name"), dict) else {}
    parts = (posted.get("firstName"), posted.get("lastName"))
    from_apple = " ".join(part for part in parts if isinstance(part, str))
    names = (claims.get("name"), composed, from_apple)
    name = next((name for name in names if isinstance(name, str) and name.strip()), None)
    hosted_domain = claims.get("hd") if connection.is_google else None
    return Claims(
        issuer=str(claims["iss"]).removeprefix("https://"),
        subject=claims["sub"],
        email=email.strip() if isinstance(email, str) else None,
        email_verified=_is_email_verified(connection, claims),
        name=name,
        groups=_groups(connection, claims) if in_directory else [],
        in_directory=in_directory,
        hosted_domain=hosted_domain if isinstance(hosted_domain, str) else None,
        sent=claims if in_directory and not _is_open(connection) else {},
    )


def _groups(connection: Connection, claims: JSONMapping) -> list[str]:
    if _is_open(connection):
        return []
    return group_names(claims.get(_groups_claim(connection)), connection)


def _is_open(connection: Connection) -> bool:
    """Whether anyone can have an account at the provider, and make groups and claims there."""
    return connection.provider.discovers and connection.is_open_to_all


def _is_email_verified(connection: Connection, claims: JSONMapping) -> bool:
    # Admins of a Microsoft directory can enter any address; `xms_edov` says the domain is verified.
    if connection.is_microsoft:
        return claims.get("xms_edov") in (True, 1, "1", "true")
    return claims.get("email_verified") in (True, "true")


def _from_github(connection: Connection, token: JSONMapping) -> Claims:
    address = connection.address("userinfo_url")
    profile = _get_json(address, token)
    if not isinstance(profile, dict) or type(profile.get("id")) is not int:
        raise SignInRefused("subject", "The provider sent no user id.")
    emails = _get_json(f"{address.rstrip('/')}/emails", token)
    verified = [
        one
        for one in (emails if isinstance(emails, list) else ())
        if isinstance(one, dict) and one.get("verified") is True
    ]
    verified.sort(key=lambda one: one.get("primary") is not True)  # preferably the primary one
    texts = [one["email"].strip() for one in verified if isinstance(one.get("email"), str)]
    email = texts[0] if texts else None
    name = profile.get("name")
    return Claims(
        issuer=connection.address("issuer").removeprefix("https://"),
        subject=str(profile["id"]),
        email=email,
        email_verified=email is not None,
        name=name if isinstance(name, str) else None,
    )


def _get_json(address: str, token: JSONMapping) -> object:
    response = exchange.Session().get(address, {"Authorization": f"Bearer {token['access_token']}"})
    response.raise_for_status()
    return response.json()
