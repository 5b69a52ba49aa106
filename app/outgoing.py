"""Requests to addresses that users name: never to our own network, never for long, never much.

The address is checked when the connection is made, on what the name resolves to at that moment:
names change. Redirects are not followed, proxies of the environment are not used, and compressed
answers are not asked for and not unpacked. One deadline bounds it all, the look-up of the name and
an answer that drips in included.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

LONGEST_URL = 2048
KEPT_CHARACTERS = 5000
BODY_SECONDS = 5
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4000}")
SAFE_IN_TARGET = "/%:=&?~+!$,;'@()*[]"
Resolve = Callable[[str, int], Sequence[str]]

# Not `is_global` of the standard library, whose answer for some of these depends on its version.
CLOSED_4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers (CGNAT)
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; clouds keep credentials there
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
# Everything outside this is loopback, mapped, translated, unique-local, link-local or multicast.
OPEN_6 = ipaddress.IPv6Network("2000::/3")
CLOSED_6 = [
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
]


class Refused(Exception):
    """A request that is not made, because of where it would go."""


class Failed(Exception):
    """A request that got no answer; the text says why, and fits into a log that users see."""


@dataclass(frozen=True)
class Answer:
    """What came back: the status, and the beginning of the body as text."""

    status: int
    body: str


@dataclass(frozen=True)
class Rules:
    """Where requests may go, and how long they may take."""

    allow_private: bool
    https_only: bool = False
    seconds: float = 30
    resolve: Resolve | None = None


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the open internet."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a zone, or no address at all
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in CLOSED_4)
    return ip in OPEN_6 and not any(ip in network for network in CLOSED_6)


def problem(url: str, rules: Rules) -> str | None:
    """Why no request may go to this URL, by its form and by what its name resolves to now.

    A name that does not resolve yet is no problem: it is looked at again with every request.
    """
    try:
        place = _place(url, rules)
        if not rules.allow_private:
            _addresses(place, rules, time.monotonic() + BODY_SECONDS)
    except Refused as error:
        return str(error)
    except Failed:
        return None
    return None


def send(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, rules: Rules
) -> Answer:
    """Make one request and return what it was answered. Raises Refused or Failed."""
    deadline = time.monotonic() + rules.seconds
    place = _place(url, rules)
    connection = _Connection(place, rules, deadline)
    try:
        connection.request(method, place.target, body, {"Host": place.netloc, **headers})
        response = connection.getresponse()
        connection.hurry(BODY_SECONDS)
        return Answer(response.status, _beginning(response))
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise Failed(f"TLS failed: {getattr(error, 'reason', None) or 'no trust'}") from error
    except TimeoutError as error:
        raise Failed(f"No answer within {rules.seconds:g} seconds.") from error
    except http.client.HTTPException as error:
        raise Failed("The answer was not HTTP.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Failed(f"The connection failed: {reason}") from error
    finally:
        connection.hang_up()


@dataclass(frozen=True)
class _Place:
    """Where a URL points."""

    secure: bool
    host: str
    port: int
    netloc: str
    target: str


def _place(url: str, rules: Rules) -> _Place:
    if len(url) > LONGEST_URL:
        raise Refused(f"Must have at most {LONGEST_URL} characters.")
    if any(ord(character) <= 32 or ord(character) == 127 for character in url) or "\\" in url:
        raise Refused("Must not contain blanks, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Refused("This is not a URL.") from None
    if parts.scheme not in ("http", "https"):
        raise Refused("Must start with https:// or http://.")
    if rules.https_only and parts.scheme != "https":
        raise Refused("Must start with https://.")
    if parts.username is not None or parts.password is not None:
        raise Refused("Must not contain a user name or password.")
    host = _ascii_host(host)
    secure = parts.scheme == "https"
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET)
    if parts.query:
        target += "?" + quote(parts.query, safe=SAFE_IN_TARGET)
    if port == 0:
        raise Refused("Must name a port from 1 to 65535, if any.")
    return _Place(secure, host, port or (443 if secure else 80), netloc, target)


def _ascii_host(host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host.replace("%", " ")))  # no zones
        except ValueError:
            raise Refused("This is not an IPv6 address.") from None
    try:
        host = host.encode("idna").decode().removesuffix(".")
    except UnicodeError:
        raise Refused("This is not a host name.") from None
    if not HOST.fullmatch(host):
        raise Refused("Must name a host.")
    return host


def _addresses(place: _Place, rules: Rules, deadline: float) -> Sequence[str]:
    found = _looked_up(place, rules.resolve or _resolve, deadline)
    # One private address among several is enough: which one is taken would be chance.
    if not found or (not rules.allow_private and not all(map(is_public, found))):
        raise Refused("This address is not open to requests from here.")
    return found


def _looked_up(place: _Place, resolve: Resolve, deadline: float) -> Sequence[str]:
    try:
        return [str(ipaddress.ip_address(place.host))]
    except ValueError:
        pass
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(resolve(place.host, place.port))
        except (OSError, UnicodeError) as error:
            found.append(error)

    # The system's look-up knows no deadline.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise Failed("The name was not resolved in time.")
    if isinstance(found[0], Exception):
        raise Failed("The name cannot be resolved.")
    addresses: Sequence[str] = found[0]
    return addresses


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@lru_cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was checked, with one deadline for everything."""

    def __init__(self, place: _Place, rules: Rules, deadline: float) -> None:
        super().__init__(place.host, place.port)
        self._place, self._rules, self._deadline = place, rules, deadline
        self._bounded: _Bounded | None = None

    def connect(self) -> None:
        """Connect to what the name resolves to now, after checking exactly that."""
        last: OSError | None = None
        for address in _addresses(self._place, self._rules, self._deadline):
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


def _beginning(response: http.client.HTTPResponse) -> str:
    # A character has at most four bytes. The status has come: what the body does changes nothing.
    wanted, parts = KEPT_CHARACTERS * 4, []
    try:
        while wanted > 0 and (part := response.read1(wanted)):
            parts.append(part)
            wanted -= len(part)
    except (OSError, ValueError, http.client.HTTPException):
        pass
    text = b"".join(parts).decode(errors="replace").replace("\0", "\ufffd")
    return text[:KEPT_CHARACTERS]
