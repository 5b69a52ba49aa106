"""Requests to addresses that users name: never to our own network, never for long, never much.

The address is checked when the connection is made, on what the name resolves to at that moment:
names change. Redirects are not followed, proxies of the environment are not used, and compressed
answers are not asked for and not unpacked. One deadline bounds it all, the look-up of the name and
an answer that drips in included.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.outbound.address_policy import (
    RequestFailed,
    RequestRefused,
    Rules,
    Target,
    parse_target,
    resolve_allowed,
)

MAX_CHARACTERS = 5000
BODY_SECONDS = 5
MOST_EARLY = 20
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4000}")


@dataclass(frozen=True)
class Response:
    """What came back: the status, and the beginning of the body as text."""

    status: int
    body: str


def url_problem(url: str, rules: Rules, until: float | None = None) -> str | None:
    """Why no request may go to this URL, by its form and by what its name resolves to now.

    A name that does not resolve `until` a moment is no problem, nor is one that nobody knows where
    private addresses are allowed: it is looked at again with every request.
    """
    until = time.monotonic() + BODY_SECONDS if until is None else until
    try:
        place = parse_target(url, rules)
        if not rules.allow_private:
            resolve_allowed(place, rules, until)
    except RequestRefused as error:
        return str(error)
    except RequestFailed:
        return None
    return None


def send(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    rules: Rules,
    *,
    longest: int = MAX_CHARACTERS,
) -> Response:
    """Make one request and return what it was answered. Raises Refused or Failed.

    Of the body no more than `longest` characters are read.
    """
    deadline = time.monotonic() + rules.seconds
    place = parse_target(url, rules)
    connection = _Connection(place, rules, deadline)
    try:
        connection.request(method, place.target, body, {"Host": place.netloc, **headers})
        response = connection.getresponse()
        connection.hurry(BODY_SECONDS)
        return Response(response.status, _beginning(response, longest))
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise RequestFailed(
            f"TLS failed: {getattr(error, 'reason', None) or 'no trust'}"
        ) from error
    except TimeoutError as error:
        raise RequestFailed(f"No answer within {rules.seconds:g} seconds.") from error
    except http.client.HTTPException as error:
        raise RequestFailed("The answer was not HTTP.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RequestFailed(f"The connection failed: {reason}") from error
    finally:
        connection.hang_up()


@lru_cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Response(http.client.HTTPResponse):
    """An answer. What may be said before it, such as 103, is none (RFC 9110, 15.2)."""

    def _read_status(self) -> tuple[str, int, str]:
        # The library passes over 100 alone.
        for _ in range(MOST_EARLY):
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 102 <= found[1] < 200:
                return found
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was checked, with one deadline for everything."""

    response_class = _Response

    def __init__(self, place: Target, rules: Rules, deadline: float) -> None:
        super().__init__(place.host, place.port)
        self._place, self._rules, self._deadline = place, rules, deadline
        self._bounded: _Bounded | None = None

    def connect(self) -> None:
        """Connect to what the name resolves to now, after checking exactly that."""
        last: OSError | None = None
        for address in resolve_allowed(self._place, self._rules, self._deadline):
            try:
                self.sock = self._bounded = _Bounded(self._open(address), self._deadline)
            except OSError as error:
                last = error
            else:
                return
        raise last or OSError("no address")

    def hurry(self, seconds: float) -> None:
        """Allow no more than so many seconds from now on."""
        if self._bounded:
            self._bounded.deadline = min(self._deadline, time.monotonic() + seconds)

    def hang_up(self) -> None:
        """Close the socket, whatever is still read from it."""
        self.close()
        if self._bounded:
            self._bounded.socket.close()

    def _open(self, address: str) -> socket.socket:
        opened = socket.create_connection((address, self._place.port), _left(self._deadline))
        # The body follows the head at once, whether or not that was acknowledged.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._place.secure:
            return opened
        try:
            opened.settimeout(_left(self._deadline))
            return _tls().wrap_socket(opened, server_hostname=self._place.host)
        except (OSError, ValueError):
            opened.close()
            raise


class _Bounded(io.RawIOBase):
    """A socket each of whose steps has only the time that is left of the whole."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self.socket, self.deadline = opened, deadline

    def sendall(self, data: Any) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            self.socket.settimeout(_left(self.deadline))
            rest = rest[self.socket.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        """What the answer is read from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come, waiting no longer than is left."""
        self.socket.settimeout(_left(self.deadline))
        return self.socket.recv_into(buffer)

    def close(self) -> None:
        """Leave the socket open: http.client closes before it has read the answer."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _beginning(response: http.client.HTTPResponse, longest: int) -> str:
    # A character has at most four bytes. The status has come: what the body does changes nothing.
    wanted, parts = longest * 4, []
    try:
        while wanted > 0 and (part := response.read1(wanted)):
            parts.append(part)
            wanted -= len(part)
    except (OSError, ValueError, http.client.HTTPException):
        pass
    text = b"".join(parts).decode(errors="replace").replace("\0", "\ufffd")
    return text[:longest]
