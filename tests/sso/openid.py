"""An OpenID provider on loopback: it authorizes whom it is told to, checks PKCE, signs ID tokens.

`lies` change what it says, one at a time, as an attacker's provider or a broken one would.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "atrium-client", "client-secret-of-atrium"
Claims = dict[str, Any]


@lru_cache
def signing_key(name: str) -> RSAKey:
    """A key that signs, made once."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})


class Provider:
    """Who it says has signed in is `who`; `form` keeps what its token endpoint was sent."""

    def __init__(self) -> None:
        signing_key("one")  # made before threads could make one each
        self.who: Claims = {}
        self.lies: Callable[[Claims, dict[str, Any]], str | None] | None = None
        self.emails: list[dict[str, Any]] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.forms: list[dict[str, str]] = []
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def reset(self) -> None:
        """As new, with somebody signed in."""
        self.who = {
            "sub": "g-1",
            "email": "dora@acme.example",
            "email_verified": True,
            "name": "Dora",
        }
        self.lies, self.emails = None, []
        self.codes, self.forms, self.asked = {}, [], []

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

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
        if form.get("client_id") != CLIENT:
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

    def _answer(self, path: str) -> tuple[int, Any]:
        self.asked.append(path)
        if path == "/keys":
            return 200, {"keys": [signing_key("one").as_dict(private=False)]}
        if path == "/user/emails":
            return 200, self.emails
        return (200, self.who) if path == "/user" else (404, {})

    def _handler(provider) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: one[0] for name, one in parse_qs(body).items()}
                self.tell(*provider._token(form))

            def do_GET(self) -> None:
                if self.path.startswith("/authorize"):
                    target, values = provider.authorize(self.path)
                    self.send_response(302)
                    self.send_header("Location", f"{target}?{urlencode(values)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.tell(*provider._answer(self.path))

            def tell(self, status: int, value: Any) -> None:
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def providing() -> Iterator[Provider]:
    """A provider for the time of a session."""
    provider = Provider()
    provider.reset()
    try:
        yield provider
    finally:
        provider.close()
