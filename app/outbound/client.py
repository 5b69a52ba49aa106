"""HTTP client for URLs that users enter: no private networks, limited time and size.

It checks the address it connects to, as it connects, because names can change. It follows no
redirects, ignores proxy variables, and neither requests nor unpacks compressed responses. One
deadline covers everything, including the DNS look-up and a response that trickles in.
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
from typing import TYPE_CHECKING

from app.outbound.address_policy import (
    RequestFailed,
    RequestRefused,
    Rules,
    Target,
    parse_target,
    resolve_allowed,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

MAX_CHARACTERS = 5000
BODY_SECONDS = 5
MAX_INTERIM = 20
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4000}")


@dataclass(frozen=True)
class Response:
    """The status, and the beginning of the body as text."""

    status: int
    body: str


def url_problem(url: str, rules: Rules, deadline: float | None = None) -> str | None:
    """Return why requests to this URL are refused, by its form and its current addresses, or None.

    A name that does not resolve in time is no problem, nor is an unknown one if private addresses
    are allowed: every request checks again.
    """
    deadline = time.monotonic() + BODY_SECONDS if deadline is None else deadline
    try:
        target = parse_target(url, rules)
        if not rules.allow_private:
            resolve_allowed(target, rules, deadline)
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
    max_characters: int = MAX_CHARACTERS,
) -> Response:
    """Send one request. Raises RequestRefused or RequestFailed.

    Reads at most `longest` characters of the body.
    """
    deadline = time.monotonic() + rules.seconds
    target = parse_target(url, rules)
    connection = _Connection(target, rules, deadline)
    try:
        connection.request(method, target.target, body, {"Host": target.netloc, **headers})
        response = connection.getresponse()
        connection.limit(BODY_SECONDS)
        return Response(response.status, _beginning(response, max_characters))
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise RequestFailed(
            f"TLS failed: {getattr(error, 'reason', None) or 'no trust'}"
        ) from error
    except TimeoutError as error:
        raise RequestFailed(f"No response within {rules.seconds:g} seconds.") from error
    except http.client.HTTPException as error:
        raise RequestFailed("The response was not valid HTTP.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RequestFailed(f"The connection failed: {reason}") from error
    finally:
        connection.close_socket()


@lru_cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Response(http.client.HTTPResponse):
    """A response that skips interim ones such as 103 (RFC 9110, 15.2)."""

    def _read_status(self) -> tuple[str, int, str]:
        # The standard library skips 100 only.
        for _ in range(MAX_INTERIM):
            status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 102 <= status[1] < 200:
                return status
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, with one deadline for everything."""

    response_class = _Response

    def __init__(self, place: Target, rules: Rules, deadline: float) -> None:
        super().__init__(place.host, place.port)
        self._place, self._rules, self._deadline = place, rules, deadline
        self._bounded: _Bounded | None = None

    def connect(self) -> None:
        """Resolve the host, check its addresses, and connect to one of them."""
        last: OSError | None = None
        for address in resolve_allowed(self._place, self._rules, self._deadline):
            try:
                self.sock = self._bounded = _Bounded(self._open(address), self._deadline)
            except OSError as error:
                last = error
            else:
                return
        raise last or OSError("no address")

    def limit(self, seconds: float) -> None:
        """Move the deadline to at most this many seconds from now."""
        if self._bounded:
            self._bounded.deadline = min(self._deadline, time.monotonic() + seconds)

    def close_socket(self) -> None:
        """Close the socket, even if a response still reads from it."""
        self.close()
        if self._bounded:
            self._bounded.socket.close()

    def _open(self, address: str) -> socket.socket:
        opened = socket.create_connection((address, self._place.port), _remaining(self._deadline))
        # Send the body without waiting for the acknowledgement of the headers.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._place.secure:
            return opened
        try:
            opened.settimeout(_remaining(self._deadline))
            return _tls().wrap_socket(opened, server_hostname=self._place.host)
        except (OSError, ValueError):
            opened.close()
            raise


class _Bounded(io.RawIOBase):
    """A socket whose every operation shares one deadline."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self.socket, self.deadline = opened, deadline

    def sendall(self, data: ReadableBuffer) -> None:
        """Send all data."""
        rest = memoryview(data)
        while rest:
            self.socket.settimeout(_remaining(self.deadline))
            rest = rest[self.socket.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the reader for the response."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read available data, waiting until the deadline."""
        self.socket.settimeout(_remaining(self.deadline))
        return self.socket.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: http.client closes before it has read the response."""


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _beginning(response: http.client.HTTPResponse, max_characters: int) -> str:
    # A character has at most four bytes. Errors in the body do not matter once there is a status.
    remaining, parts = max_characters * 4, []
    try:
        while remaining > 0 and (part := response.read1(remaining)):
            parts.append(part)
            remaining -= len(part)
    except (OSError, ValueError, http.client.HTTPException):
        pass
    text = b"".join(parts).decode(errors="replace").replace("\0", "\ufffd")
    return text[:max_characters]
