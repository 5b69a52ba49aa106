"""Policy for targets of outgoing requests: the form of a URL, and the addresses of its host."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import idna

LONGEST_URL = 2048
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
DEVIATING = frozenset("ßς\u200c\u200d")
NOT_OPEN = "This address is not allowed: its host does not resolve, or is not public."
SAFE_IN_TARGET = "/%:=&?~+!$,;'@()*[]"
Resolve = Callable[[str, int], Sequence[str]]

# Not the standard library's `is_global`, which differs between Python versions.
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


class RequestRefused(Exception):
    """A request refused because of its target."""


class RequestFailed(Exception):
    """A request without a response; the message is safe to show to users."""


class NameNotResolved(RequestFailed):
    """A host name that does not resolve."""


@dataclass(frozen=True)
class Rules:
    """The policy of a request: allowed targets, and the time limit."""

    allow_private: bool
    https_only: bool = False
    seconds: float = 30
    resolve: Resolve | None = None


def is_public(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a zone, or not an address
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in CLOSED_4)
    return ip in OPEN_6 and not any(ip in network for network in CLOSED_6)


@dataclass(frozen=True)
class Target:
    secure: bool
    host: str
    port: int
    netloc: str
    target: str

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.netloc}{self.target}"


def parse_target(url: str, rules: Rules) -> Target:
    """Parse a URL. Raises RequestRefused if it cannot be requested."""
    if len(url) > LONGEST_URL:
        raise RequestRefused(f"Must have at most {LONGEST_URL} characters.")
    if any(ord(character) <= 32 or ord(character) == 127 for character in url) or "\\" in url:
        raise RequestRefused("Must not contain blanks, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise RequestRefused("This is not a URL.") from None
    if parts.scheme not in ("http", "https"):
        raise RequestRefused("Must start with https:// or http://.")
    if rules.https_only and parts.scheme != "https":
        raise RequestRefused("Must start with https://.")
    if parts.username is not None or parts.password is not None:
        raise RequestRefused("Must not contain a user name or password.")
    host = _ascii_host(host)
    secure = parts.scheme == "https"
    bracketed = f"[{host}]" if ":" in host else host
    netloc = bracketed if port is None else f"{bracketed}:{port}"
    target = quote(parts.path or "/", safe=SAFE_IN_TARGET)
    if parts.query:
        target += "?" + quote(parts.query, safe=SAFE_IN_TARGET)
    if port == 0:
        raise RequestRefused("Must name a port from 1 to 65535, if any.")
    return Target(secure, host, port or (443 if secure else 80), netloc, target)


def _ascii_host(host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host.replace("%", " ")))  # no zones
        except ValueError:
            raise RequestRefused("This is not an IPv6 address.") from None
    try:
        # Python's codec follows IDNA 2003, where ß is ss: that may be another owner's host.
        is_deviating = DEVIATING & set(host)
        name = (idna.encode(host, uts46=True) if is_deviating else host.encode("idna")).decode()
    except ValueError:
        raise RequestRefused("This is not a host name.") from None
    host = name.removesuffix(".")
    if not HOST.fullmatch(host):
        raise RequestRefused("Must name a host.")
    return host


def resolve_allowed(target: Target, rules: Rules, deadline: float) -> Sequence[str]:
    """Resolve the host to addresses, all allowed. Raises RequestRefused or RequestFailed."""
    try:
        ips = _look_up(target, rules.resolve or _resolve, deadline)
    except NameNotResolved:
        if rules.allow_private:
            raise
        ips = ()  # refused like a private address: else users could probe our internal names
    # A single private address is enough to refuse, as any of them might be used.
    if not ips or (not rules.allow_private and not all(map(is_public, ips))):
        raise RequestRefused(NOT_OPEN)
    return ips


def _look_up(target: Target, resolve: Resolve, deadline: float) -> Sequence[str]:
    try:
        return [str(ipaddress.ip_address(target.host))]
    except ValueError:
        pass
    remaining, results = deadline - time.monotonic(), list[Sequence[str] | Exception]()

    def resolve_host() -> None:
        try:
            results.append(resolve(target.host, target.port))
        except (OSError, UnicodeError) as error:
            results.append(error)

    if remaining > 0:
        # getaddrinfo has no timeout.
        thread = threading.Thread(target=resolve_host, daemon=True)
        thread.start()
        thread.join(remaining)
    if not results:
        raise RequestFailed("The host name was not resolved in time.")
    if isinstance(results[0], Exception):
        raise NameNotResolved("The host name cannot be resolved.")
    return results[0]


def _resolve(host: str, port: int) -> Sequence[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
