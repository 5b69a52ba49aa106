"""Requests to identity providers: through `outgoing`, as Authlib's clients make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from app.errors import Malformed
from app.outbound import client
from app.outbound.address_policy import RequestFailed, RequestRefused
from app.rest import json_input
from app.sso import validation
from app.sso.refusals import SignInRefused
from app.types import JSONObject

LONGEST_ANSWER = 300_000


class Unreachable(SignInRefused):
    """A provider that does not answer as one."""

    def __init__(self, detail: str) -> None:
        super().__init__("provider", detail)


class ProviderResponse:
    """What a provider answered, with the face that Authlib looks at."""

    def __init__(self, status_code: int, text: str) -> None:
        self.status_code, self.text = status_code, text

    def json(self) -> object:
        """The body as JSON. Raises Unreachable for anything else."""
        try:
            return json_input.loads(self.text.encode())
        except (Malformed, UnicodeError):
            raise Unreachable("The answer is no JSON.") from None

    def raise_for_status(self) -> None:
        """Raise Unreachable for an error."""
        if self.status_code >= 400:
            raise Unreachable(f"It answered {self.status_code}.")


class Session:
    """A session as Authlib wants one: each request is checked, bounded and never redirected."""

    def post(
        self, url: str, data: Any = None, headers: Any = None, auth: Any = None
    ) -> ProviderResponse:
        """POST a form, with the client's credentials."""
        body = urlencode(data or {})
        if auth is not None:
            url, headers, body = auth.prepare("POST", url, dict(headers or {}), body)
        return self.request("POST", url, headers, body.encode())

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> ProviderResponse:
        """GET."""
        return self.request("GET", url, headers, None)

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> ProviderResponse:
        """One request. Raises Unreachable where there is no answer."""
        said = {"Accept": "application/json", "User-Agent": "Atrium", **(headers or {})}
        if body is not None:
            said["Content-Length"] = str(len(body))
        try:
            answer = client.send(
                method, url, said, body, validation.request_rules(), longest=LONGEST_ANSWER
            )
        except (RequestRefused, RequestFailed) as error:
            raise Unreachable(str(error)) from None
        return ProviderResponse(answer.status, answer.body)


def json_object(answer: ProviderResponse) -> JSONObject:
    """The JSON object of an answer that is no error. Raises Unreachable."""
    answer.raise_for_status()
    found = answer.json()
    if not isinstance(found, dict):
        raise Unreachable("The answer is no JSON object.")
    return found
