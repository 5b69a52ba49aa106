"""Sign-in by OAuth 2.0 and OpenID Connect, by Authlib (contract section 10)."""

from __future__ import annotations

from datetime import timedelta

import jwt
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.client import OAuth2Client

from app import clock
from app.sso import flows
from app.sso.connections import Connection
from app.sso.flows import StartedFlow
from app.sso.identities import Claims, group_names
from app.sso.models import Flow
from app.sso.oauth import exchange, id_tokens
from app.sso.oauth.addresses import callback_url
from app.sso.refusals import SignInRefused
from app.types import JSONMapping, JSONObject

APPLE_SECRET = timedelta(minutes=5)
LONGEST_CODE = 4000
OF_ADDRESS = ("email", "email_verified", "xms_edov")


def authorization_url(connection: Connection, begun: StartedFlow) -> str:
    """Where a browser goes to sign in."""
    provider = connection.provider
    extra = {"response_mode": "form_post"} if provider.posts_callback else {}
    extra |= {"nonce": begun.flow.nonce} if provider.openid else {}
    url, _ = _client(connection, begun.flow).create_authorization_url(
        connection.address("authorize_url"),
        state=begun.state,
        code_verifier=begun.verifier,
        **extra,
    )
    return str(url)


def fetch_claims(connection: Connection, flow: Flow, code: str, user: JSONMapping) -> Claims:
    """Who the provider says it is, for the code that it gave. Raises SignInRefused.

    `user` is what Apple posts beside the code, once; nothing but a name is taken from it.
    """
    token = _token(connection, flow, code)
    if not connection.provider.openid:
        return _of_github(connection, token)
    claims = id_tokens.verify(connection, token, flow.nonce)
    if connection.config.get("userinfo_url"):
        claims = _with_userinfo(connection, token, claims)
    return _of_claims(connection, claims, user)


def _client(connection: Connection, flow: Flow) -> OAuth2Client:
    scopes = connection.config.get("scopes") or connection.provider.scopes
    return OAuth2Client(
        exchange.Session(),
        client_id=connection.config["client_id"],
        client_secret=client_secret(connection),
        token_endpoint_auth_method="client_secret_post",  # noqa: S106 - a method, no password
        scope=" ".join(scopes),
        redirect_uri=flow.callback_url or callback_url(connection),
        code_challenge_method="S256",
    )


def client_secret(connection: Connection) -> str:
    """What proves the client: its secret, or for Apple a token signed by its key."""
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


def _token(connection: Connection, flow: Flow, code: str) -> JSONMapping:
    if not code or len(code) > LONGEST_CODE:
        raise SignInRefused("code", "The provider gave no code.")
    try:
        token = _client(connection, flow).fetch_token(
            connection.address("token_url"),
            grant_type="authorization_code",
            code=code,
            code_verifier=flows.pkce_verifier(flow),
        )
    except AuthlibBaseError as error:
        raise SignInRefused("code", f"The provider refused it: {error.error}") from None
    except (ValueError, TypeError):  # Authlib also joins what an error says, text or not
        raise exchange.Unreachable("The answer is none of a token endpoint.") from None
    if not isinstance(token.get("access_token"), str):
        raise SignInRefused("code", "The provider gave no token for it.")
    found: JSONMapping = token
    return found


def _with_userinfo(connection: Connection, token: JSONMapping, claims: JSONObject) -> JSONObject:
    found = _asked(connection.address("userinfo_url"), token)
    if not isinstance(found, dict) or found.get("sub") != claims["sub"]:
        raise SignInRefused("subject", "The user info is of somebody else.")
    if found.get("email") == claims.get("email"):
        return found | claims
    # Of two addresses, what one says of its own proves nothing of the other.
    told = claims if claims.get("email") else found
    return found | claims | {name: told.get(name) for name in OF_ADDRESS}


def _of_claims(connection: Connection, claims: JSONMapping, user: JSONMapping) -> Claims:
    email, in_directory = claims.get("email"), connection.vouches_for_directory(claims.get("tid"))
    name = claims.get("name") or _posted_name(user)
    return Claims(
        issuer=str(claims["iss"]).removeprefix("https://"),
        subject=claims["sub"],
        email=email.strip() if isinstance(email, str) else None,
        email_verified=_is_proved(connection, claims),
        name=name if isinstance(name, str) else None,
        groups=group_names(claims.get("groups")) if in_directory else [],
        in_directory=in_directory,
    )


def _is_proved(connection: Connection, claims: JSONMapping) -> bool:
    # Who runs a directory of Microsoft writes any address in it; this claim is about the domain.
    if connection.provider.name == "microsoft":
        return claims.get("xms_edov") in (True, 1, "1", "true")
    return claims.get("email_verified") in (True, "true")


def _posted_name(user: JSONMapping) -> str | None:
    name = user.get("name")
    parts = (name.get("firstName"), name.get("lastName")) if isinstance(name, dict) else ()
    return " ".join(part for part in parts if isinstance(part, str)) or None


def _of_github(connection: Connection, token: JSONMapping) -> Claims:
    address = connection.address("userinfo_url")
    found = _asked(address, token)
    if not isinstance(found, dict) or type(found.get("id")) is not int:
        raise SignInRefused("subject", "The provider names nobody.")
    email = _proved_address(_asked(f"{address.rstrip('/')}/emails", token))
    name = found.get("name")
    return Claims(
        issuer=connection.address("issuer").removeprefix("https://"),
        subject=str(found["id"]),
        email=email,
        email_verified=email is not None,
        name=name if isinstance(name, str) else None,
    )


def _proved_address(listed: object) -> str | None:
    """The first address that GitHub proved, the primary one before others."""
    if not isinstance(listed, list):
        return None
    proved = [one for one in listed if isinstance(one, dict) and one.get("verified") is True]
    proved.sort(key=lambda one: one.get("primary") is not True)
    texts = [one["email"] for one in proved if isinstance(one.get("email"), str)]
    return texts[0].strip() if texts else None


def _asked(address: str, token: JSONMapping) -> object:
    answer = exchange.Session().get(address, {"Authorization": f"Bearer {token['access_token']}"})
    answer.raise_for_status()
    return answer.json()
