"""Requests of handlers to other services: to checked addresses, with limits of time and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import orjson

from app import config
from app.extensions import running
from app.outbound import client
from app.outbound.address_policy import RequestFailed, RequestRefused, Rules

_withheld: ContextVar[list[str] | None] = ContextVar("withheld", default=None)
LONGEST_SECONDS = 30
MAX_CHARACTERS = 1_000_000


class HttpError(Exception):
    """A request without an answer: its target is refused, or does not answer in time."""


@dataclass(frozen=True)
class HttpResponse:
    """An answer, whatever its status."""

    status: int
    """The status, such as 200."""
    text: str
    """At most 1,000,000 characters."""

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.status < client.FIRST_ERROR

    def json(self) -> Any:
        """The text as JSON. Raises HttpError."""
        try:
            return orjson.loads(self.text)
        except ValueError:
            raise HttpError("The answer is not JSON.") from None


def request(
    method: str,
    url: str,
    *,
    json: object = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10,
    trusted: bool = False,
) -> HttpResponse:
    """Send a request; returns the answer. Raises HttpError.

    The address is checked as it is connected to: in production private ones are refused, unless
    the URL is `trusted`, as that of a setting is, and never one that users name. `timeout` is in
    seconds, at most 30; in a web request all of it takes 3 seconds at most. Follows no redirects.
    """
    running.check_time()
    withheld = _withheld.get()
    if withheld is not None:
        withheld.append(url)
        raise HttpError("Requests to other services are withheld.")
    sent = dict(headers or {})
    if json is not None:
        body = orjson.dumps(json)
        sent.setdefault("Content-Type", "application/json")
    allow_private = trusted or config.current().private_targets
    rules = Rules(allow_private, seconds=min(timeout, LONGEST_SECONDS))
    try:
        found = client.send(
            client.Request(method.upper(), url, sent, body), rules, max_characters=MAX_CHARACTERS
        )
    except (RequestRefused, RequestFailed) as error:
        raise HttpError(str(error)) from error
    return HttpResponse(found.status, found.body)


@contextmanager
def withholding() -> Iterator[list[str]]:
    """Send nothing in the block, whose calls try what handlers do; yields the URLs meant."""
    found = list[str]()
    token = _withheld.set(found)
    try:
        yield found
    finally:
        _withheld.reset(token)


def get(url: str, **options: Any) -> HttpResponse:
    """Send a GET, as `request`."""
    return request("GET", url, **options)


def post(url: str, **options: Any) -> HttpResponse:
    """Send a POST, as `request`."""
    return request("POST", url, **options)
