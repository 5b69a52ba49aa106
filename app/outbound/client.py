"""HTTP client for URLs that users enter: no private networks, limited time and size.

It checks the address it connects to, as it connects, because names can change. It follows no
redirects, ignores proxy variables, and neither requests nor unpacks compressed responses. One
deadline covers everything, including the DNS look-up and a response that trickles in.

Leans on urllib3's `_new_conn` and `ConnectionCls`: nothing else lets requests connect to an address
that was checked (`tests/test_library_insides.py` holds the contract); and on urllib3 reading a
response, its status first, by `readline` of the socket's `makefile`.
"""

from __future__ import annotations

import io
import math
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.util import SKIP_HEADER

from app import clock
from app.context import tracing
from app.outbound import web_waits
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
FIRST_ERROR = 400
MAX_INTERIM_LINES = 100
KEPT_HEADERS, MAX_HEADERS = 90, 1000
BODY_HEADERS = (b"content-length", b"transfer-encoding", b"connection", b"retry-after")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4000}")
END_OF_HEADERS = (b"\r\n", b"\n", b"")
INTERIM_STATUS = re.compile(rb"HTTP/\S+\s+1(?!01)\d\d\s")


@dataclass(frozen=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True)
class Response:
    """The status, and the beginning of the body as text."""

    status: int
    body: str
    retry_after: int | None = None
    """The seconds that its `Retry-After` asks for, if they can be read."""


def url_problem(url: str, rules: Rules, deadline: float | None = None) -> str | None:
    """Return why requests to this URL are refused, by its form and its current addresses, or None.

    A name that does not resolve in time is no problem, nor is an unknown one if private addresses
    are allowed: every request checks again.
    """
    deadline = web_waits.lookup_deadline() if deadline is None else deadline
    try:
        target = parse_target(url, rules)
        if rules.allow_private:
            return None
        if deadline > time.monotonic():
            with suppress(web_waits.Busy), web_waits.place():
                resolve_allowed(target, rules, deadline)
                return None
        resolve_allowed(target, rules, deadline=0)  # no time for a name: checks addresses only
    except RequestRefused as error:
        return str(error)
    except RequestFailed:
        return None
    return None


def send(sent: Request, rules: Rules, *, max_characters: int = MAX_CHARACTERS) -> Response:
    """Send one request. Raises RequestRefused or RequestFailed.

    Reads at most `max_characters` characters of the body. A web request waits 3 seconds at most,
    and only if few others wait.
    """
    target = parse_target(sent.url, rules)
    rules = replace(rules, seconds=web_waits.seconds(rules.seconds))
    try:
        # Without the trace's context, which is no business of a foreign host.
        with (
            web_waits.place(),
            tracing.outgoing(sent.method, target.host, target.port) as span,
        ):
            response = _exchange(sent, target, rules, max_characters)
            span.set("http.response.status_code", response.status)
            if response.status >= FIRST_ERROR:
                span.fail(str(response.status))
            return response
    except web_waits.Busy:
        raise RequestFailed(web_waits.BUSY) from None


def _exchange(sent: Request, target: Target, rules: Rules, max_characters: int) -> Response:
    adapter = _Adapter(target, rules, time.monotonic() + rules.seconds)
    headers = {"Host": target.netloc, "User-Agent": SKIP_HEADER, **sent.headers}
    # requests refuses blanks around a value, which mean nothing (RFC 9110, 5.5).
    headers = {name: value.strip(" \t") for name, value in headers.items()}
    try:
        request = requests.Request(sent.method, target.url, headers=headers, data=sent.body)
        # Not by a session, which reads the whole body of a redirect.
        response = adapter.send(request.prepare(), stream=True)
        adapter.limit(BODY_SECONDS)
        retry_after = _parse_retry_after(response.headers.get("Retry-After", ""))
        text = _read_text(response.raw, max_characters)
        return Response(response.status_code, text, retry_after)
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise RequestFailed(_explain(error, rules)) from error
    finally:
        adapter.close()


def _parse_retry_after(retry_after: str) -> int | None:
    """Return the seconds of a `Retry-After`, which has a number or a date."""
    if re.fullmatch("[0-9]{1,9}", retry_after):
        return int(retry_after)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0, math.ceil((until - clock.now()).total_seconds()))


def _explain(error: BaseException, rules: Rules) -> str:
    """Return what to tell users of the error that requests and urllib3 have wrapped."""
    wrappers = (requests.RequestException, urllib3.exceptions.HTTPError)
    while isinstance(error, wrappers) and error.__context__ is not None:
        error = error.__context__
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'no trust'}"
    if isinstance(error, TimeoutError):
        return f"No response within {rules.seconds:g} seconds."
    if isinstance(error, ConnectionError) and not error.errno:
        return "The connection was closed without a response."
    problem = getattr(error, "strerror", None)  # of the operating system
    if problem or isinstance(error, ValueError):
        return f"The connection failed: {problem or type(error).__name__}"
    return "The response was not valid HTTP."


@lru_cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Adapter(HTTPAdapter):
    """Sends one request to a checked address, with one deadline for everything."""

    def __init__(self, target: Target, rules: Rules, deadline: float) -> None:
        super().__init__()
        self.target, self._rules, self._deadline = target, rules, deadline
        self._bounded: _Bounded | None = None

    def limit(self, seconds: float) -> None:
        """Move the deadline to at most this many seconds from now."""
        if self._bounded:
            self._bounded.deadline = min(self._deadline, time.monotonic() + seconds)

    def close(self) -> None:
        """Close the connection, even if a response still reads from it."""
        super().close()
        if self._bounded:
            self._bounded.socket.close()

    def connect(self) -> _Bounded:
        """Resolve the host, check its addresses, and connect to one of them, by TLS if need be."""
        last: OSError | None = None
        for address in resolve_allowed(self.target, self._rules, self._deadline):
            try:
                self._bounded = _Bounded(self._open(address), self._deadline)
            except OSError as error:
                last = error
            else:
                return self._bounded
        raise last or OSError("no address")

    def _open(self, address: str) -> socket.socket:
        opened = socket.create_connection((address, self.target.port), _remaining(self._deadline))
        # Send the body without waiting for the acknowledgement of the headers.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.target.secure:
            return opened
        try:
            opened.settimeout(_remaining(self._deadline))
            return _tls().wrap_socket(opened, server_hostname=self.target.host)
        except (OSError, ValueError):
            opened.close()
            raise

    def get_connection_with_tls_context(
        self, *_: object, **__: object
    ) -> urllib3.HTTPConnectionPool:
        """Return a pool whose only connection goes to the target."""
        # Not one for HTTPS: `connect` begins TLS, so that another address is tried if that fails.
        pool = urllib3.HTTPConnectionPool(self.target.host, self.target.port)
        pool.ConnectionCls = partial(_Connection, adapter=self)  # type: ignore[assignment]
        return pool

    def cert_verify(self, *_: object, **__: object) -> None:
        """Do nothing: `connect` verifies, and trusts whom the system trusts."""


class _Connection(HTTPConnection):
    """A connection that its adapter opens."""

    def __init__(self, *arguments: object, adapter: _Adapter, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._adapter = adapter

    def request(self, method: str, url: str, *arguments: object, **options: object) -> None:
        """Send the request; its target as it was checked, as urllib3 changes escapes."""
        super().request(method, self._adapter.target.target, *arguments, **options)  # type: ignore[arg-type]

    def _new_conn(self) -> socket.socket:
        return self._adapter.connect()  # type: ignore[return-value]


class _Bounded(io.RawIOBase):
    """A socket whose every operation shares one deadline."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self.socket, self.deadline = opened, deadline

    def sendall(self, data: ReadableBuffer) -> None:
        rest = memoryview(data)
        while rest:
            self.socket.settimeout(_remaining(self.deadline))
            rest = rest[self.socket.send(rest) :]

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: the deadline holds."""

    def makefile(self, mode: str) -> io.BufferedReader:
        return _Reader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read available data, waiting until the deadline."""
        self.socket.settimeout(_remaining(self.deadline))
        return self.socket.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the connection closes before the response is read."""


class _Reader(io.BufferedReader):
    """Reads a response, past interim ones such as 103 (RFC 9110, 15.2). urllib3 skips 100 only.

    Leaves out headers beyond the 90th that say nothing about the body, as `http.client` refuses
    responses with more than 100.
    """

    _is_final = False
    _headers = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line; the first one is the status of the final response."""
        read = super().readline
        line = read(size)
        if self._is_final:
            while self._headers < MAX_HEADERS and line not in END_OF_HEADERS:
                self._headers += 1
                if self._headers <= KEPT_HEADERS or line.split(b":")[0].lower() in BODY_HEADERS:
                    break
                line = read(size)
            if line in END_OF_HEADERS:
                self._headers = MAX_HEADERS  # what follows is the body
            return line
        lines = 0
        while INTERIM_STATUS.match(line):
            while line not in END_OF_HEADERS:
                line, lines = read(size), lines + 1
                if lines > MAX_INTERIM_LINES:
                    raise urllib3.exceptions.ProtocolError("too many interim responses")
            line = read(size)
        self._is_final = True
        return line


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _read_text(response: urllib3.BaseHTTPResponse, max_characters: int) -> str:
    # A character has at most four bytes. Errors in the body do not matter once there is a status.
    remaining, parts = max_characters * 4, []
    try:
        while remaining > 0 and (part := response.read1(remaining, decode_content=False)):
            parts.append(part)
            remaining -= len(part)
    except (OSError, ValueError, urllib3.exceptions.HTTPError):
        pass
    text = b"".join(parts).decode(errors="replace").replace("\0", "\ufffd")
    return text[:max_characters]
