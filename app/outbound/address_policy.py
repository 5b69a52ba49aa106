"""Where outgoing requests may go: the form of a URL, and what its name resolves to at a moment."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import idna

LONGEST_URL = 2048
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
DEVIATING = frozenset("ßς\u200c\u200d")
NOT_OPEN = "This address is not open to requests from here: it leads nowhere, or to no public host."
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


class RequestRefused(Exception):
    """A request that is not made, because of where it would go."""


class RequestFailed(Exception):
    """A request that got no answer; the text says why, and fits into a log that users see."""


class NameNotResolved(RequestFailed):
    """A name that nobody knows."""


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


@dataclass(frozen=True)
class Target:
    """Where a URL points."""

    secure: bool
    host: str
    port: int
    netloc: str
    target: str


def parse_target(url: str, rules: Rules) -> Target:
    """Where a URL points. Raises Refused for what is no address for a request."""
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
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
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
        name = _of_2008(host) if DEVIATING & set(host) else host.encode("idna").decode()
    except ValueError:
        raise RequestRefused("This is not a host name.") from None
    host = name.removesuffix(".")
    if not HOST.fullmatch(host):
        raise RequestRefused("Must name a host.")
    return host


def _of_2008(host: str) -> str:
    # The codec knows the rules of 2003, by which ß is ss: the name of somebody else's host.
    return idna.encode(host, uts46=True).decode()


def resolve_allowed(place: Target, rules: Rules, deadline: float) -> Sequence[str]:
    """What its name resolves to now, if requests may go there. Raises Refused or Failed."""
    try:
        found = _looked_up(place, rules.resolve or _resolve, deadline)
    except NameNotResolved:
        if rules.allow_private:
            raise
        found = ()  # told like a private address: else users could find out our internal names
    # One private address among several is enough: which one is taken would be chance.
    if not found or (not rules.allow_private and not all(map(is_public, found))):
        raise RequestRefused(NOT_OPEN)
    return found


def _looked_up(place: Target, resolve: Resolve, deadline: float) -> Sequence[str]:
    try:
        return [str(ipaddress.ip_address(place.host))]
    except ValueError:
        pass
    left, found = deadline - time.monotonic(), list[Any]()

    def look() -> None:
        try:
            found.append(resolve(place.host, place.port))
        except (OSError, UnicodeError) as error:
            found.append(error)

    if left > 0:
        # The system's look-up knows no deadline.
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(left)
    if not found:
        raise RequestFailed("The name was not resolved in time.")
    if isinstance(found[0], Exception):
        raise NameNotResolved("The name cannot be resolved.")
    addresses: Sequence[str] = found[0]
    return addresses


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
