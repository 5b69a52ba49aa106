"""An OpenID provider on loopback: it authorizes whom it is told to, checks PKCE, signs ID tokens.

`lies` change what it says, one at a time, as an attacker's provider or a broken one would;
`answers` are what it says at some paths.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.sso.loopback import Answer, Server

CLIENT, SECRET = "atrium-client", "client-secret-of-atrium"
POST, DOCUMENT = "client_secret_post", "/.well-known/openid-configuration"
BASIC = f"Basic {base64.b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}"
Claims = dict[str, Any]


@lru_cache
def signing_key(name: str) -> RSAKey:
    """A key that signs, made once."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


class Provider(Server):
    """Who it says has signed in is `who`; `form` keeps what its token endpoint was sent."""

    def __init__(self) -> None:
        signing_key("one")  # made before threads could make one each
        self.who: Claims = {}
        self.lies: Callable[[Claims, dict[str, Any]], str | None] | None = None
        self.emails: list[dict[str, Any]] = []
        self.token_answer: dict[str, Any] | None = None
        self.answers: Claims = {}
        self.document: Claims = {}
        self.keys = ["one"]
        self.codes: dict[str, dict[str, str]] = {}
        self.forms: list[dict[str, str]] = []
        self.asked: list[str] = []
        super().__init__()
        self.url = self.address

    def reset(self) -> None:
        """As new, with somebody signed in."""
        self.who = {
            "sub": "g-1",
            "email": "dora@acme.example",
            "email_verified": True,
            "name": "Dora",
        }
        self.lies, self.emails, self.token_answer = None, [], None
        self.answers, self.document, self.keys = {}, {}, ["one"]
        self.codes, self.forms, self.asked = {}, [], []

    def answer(self, path: str, body: str | None) -> Answer:
        """Its page, its token endpoint, and what can be asked of it."""
        if body is None and path.startswith("/authorize"):
            target, values = self.authorize(path)
            return Answer(302, location=f"{target}?{urlencode(values)}")
        form = None if body is None else {name: one[0] for name, one in parse_qs(body).items()}
        status, value = self._asked(path) if form is None else self._token(form)
        if isinstance(value, Answer):
            return value
        return Answer(status, json.dumps(value), "application/json")

    def config(self, **more: Any) -> dict[str, Any]:
        """The settings of a client of this provider."""
        names = {"authorize_url": "authorize", "token_url": "token", "jwks_url": "keys"}
        addresses = {name: f"{self.url}/{path}" for name, path in names.items()}
        return {
            "client_id": CLIENT,
            "client_secret": SECRET,
            "issuer": self.url,
            **addresses,
            **more,
        }

    def issuer_config(self, **more: Any) -> dict[str, Any]:
        """The settings of a client that knows only the issuer."""
        return {"client_id": CLIENT, "client_secret": SECRET, "issuer": self.url, **more}

    def published(self) -> Claims:
        """What it publishes about itself, with the changes of `document`; None removes a part."""
        paths = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
        usual = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in paths.items()}
        usual |= {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        usual |= {"token_endpoint_auth_methods_supported": [POST], **self.document}
        return {name: value for name, value in usual.items() if value is not None}

    def authorize(self, address: str) -> tuple[str, dict[str, str]]:
        """Sign `who` in at an authorization address: where the browser returns, and with what."""
        asked = dict(parse_qsl(urlsplit(address).query))
        code = secrets.token_urlsafe(12)
        self.codes[code] = asked
        return asked["redirect_uri"], {"code": code, "state": asked["state"]}

    def id_token(self, asked: dict[str, str], access_token: str) -> str:
        """The ID token of a sign-in, with whatever lies there are."""
        now = int(time.time())
        half = hashlib.sha256(access_token.encode()).digest()[:16]
        claims = {
            "iss": self.url,
            "aud": asked["client_id"],
            "iat": now,
            "exp": now + 300,
            "nonce": asked.get("nonce"),
            "at_hash": base64.urlsafe_b64encode(half).decode().rstrip("="),
            **self.who,
        }
        header: dict[str, Any] = {"alg": "RS256", "kid": "one"}
        forged = self.lies(claims, header) if self.lies else None
        if forged is not None:
            return forged
        return jwt.encode(header, claims, signing_key(header["kid"]))

    def _token(self, form: dict[str, str]) -> tuple[int, Any]:
        self.forms.append(form)
        if self.token_answer is not None:
            return 200, self.token_answer
        if not self._knows_client(form):
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        shown = base64.urlsafe_b64encode(challenge).decode().rstrip("=")
        if asked is None or asked["code_challenge"] != shown:
            return 400, {"error": "invalid_grant"}
        if asked["redirect_uri"] != form.get("redirect_uri"):
            return 400, {"error": "invalid_grant"}
        token = secrets.token_urlsafe(12)
        found = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        return 200, found | {"id_token": self.id_token(asked, token)}

    def _knows_client(self, form: dict[str, str]) -> bool:
        if self.published().get("token_endpoint_auth_methods_supported") == [POST]:
            return form.get("client_id") == CLIENT
        return self.authorization == BASIC and "client_id" not in form

    def _asked(self, path: str) -> tuple[int, Any]:
        self.asked.append(path)
        if path in self.answers:
            return 200, self.answers[path]
        if path == "/keys":
            return 200, {"keys": [signing_key(name).as_dict(private=False) for name in self.keys]}
        if path == DOCUMENT:
            return 200, self.published()
        if path == "/user/emails":
            return 200, self.emails
        return (200, self.who) if path in ("/user", "/userinfo") else (404, {})


@contextmanager
def providing() -> Iterator[Provider]:
    """A provider for the time of a session."""
    provider = Provider()
    provider.reset()
    try:
        yield provider
    finally:
        provider.close()
