"""HTTP session for Authlib on top of `app.outbound.client`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from app import db
from app.errors import Malformed
from app.outbound import client, web_waits
from app.outbound.address_policy import RequestFailed, RequestRefused
from app.sso import validation
from app.sso.connections import Connection, has_custom_endpoints
from app.sso.refusals import UNAVAILABLE, SignInRefused
from app.types import JSONObject
from app.web import serialization

LONGEST_ANSWER = 300_000


class Unreachable(SignInRefused):
    """Raised if a provider does not answer, or not as expected."""

    code = "temporarily_unavailable"
    message = UNAVAILABLE

    def __init__(self, detail: str) -> None:
        super().__init__("provider", detail)


@contextmanager
def place(connection: Connection) -> Iterator[None]:
    """Hold a place among the threads that wait for hosts that users name. Raises Unreachable."""
    usual = not connection.provider.discovers and not has_custom_endpoints(connection.config)
    named_by_users = connection.is_own and not usual
    account_id = connection.account.id
    try:
        with web_waits.place(account_id) if named_by_users else web_waits.for_operator():
            yield
    except web_waits.Busy:
        raise Unreachable("Too many sign-ins wait for the provider.") from None


class ProviderResponse:
    """A provider's response with the interface that Authlib expects."""

    def __init__(self, status_code: int, text: str) -> None:
        self.status_code, self.text = status_code, text

    def json(self) -> object:
        """Parse the body as JSON. Raises Unreachable."""
        try:
            return serialization.parse(self.text.encode())
        except (Malformed, UnicodeError):
            raise Unreachable("The response is not valid JSON.") from None

    def raise_for_status(self) -> None:
        """Raise Unreachable for an error status, or a redirect, which nobody follows."""
        if self.status_code >= 300:
            raise Unreachable(f"The provider answered {self.status_code}.")


class Session:
    """A session for Authlib: requests are checked and limited, and follow no redirects."""

    def post(
        self, url: str, data: Any = None, headers: Any = None, auth: Any = None
    ) -> ProviderResponse:
        """POST a form, with the client's credentials."""
        body = urlencode(data or {})
        if auth is not None:
            url, headers, body = auth.prepare("POST", url, dict(headers or {}), body)
        return self.request("POST", url, headers, body.encode())

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> ProviderResponse:
        """Send a GET request."""
        return self.request("GET", url, headers, None)

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> ProviderResponse:
        """Send a request. Raises Unreachable without a response."""
        if not db.in_transaction():
            db.db.session.rollback()  # hold no connection during requests
        all_headers = {"Accept": "application/json", "User-Agent": "Atrium", **(headers or {})}
        if body is not None:
            all_headers["Content-Length"] = str(len(body))
        try:
            response = client.send(
                client.Request(method, url, all_headers, body),
                validation.request_rules(),
                max_characters=LONGEST_ANSWER,
            )
        except (RequestRefused, RequestFailed) as error:
            raise Unreachable(str(error)) from None
        return ProviderResponse(response.status, response.body)


def published(address: str) -> JSONObject:
    """Read the JSON object at an address. Raises Unreachable."""
    try:
        return json_object(Session().get(address))
    except Unreachable as error:
        raise Unreachable(f"{address} cannot be read: {error.detail}") from None


def json_object(response: ProviderResponse) -> JSONObject:
    """Parse a successful response as a JSON object. Raises Unreachable."""
    response.raise_for_status()
    body = response.json()
    if not isinstance(body, dict):
        raise Unreachable("The response is not a JSON object.")
    return body
