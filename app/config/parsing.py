"""Parsers of settings: each returns the value of a text, or raises ValueError."""

from __future__ import annotations

import ipaddress
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable
from email.utils import getaddresses
from urllib.parse import SplitResult, unquote, urlsplit

from app.slugs import SYSTEM_SLUG, slug_problem

WITHOUT_HOST = ("console",)
ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?"
)
DEFAULT_PORTS = {"http": "80", "https": "443"}
HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
DIGITS = re.compile(r"[0-9]{1,20}")
TOKEN = re.compile(r"[!-~]+")
RATE = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")
NUMBER = re.compile("[0-9]{1,18}")


def utf8(value: str) -> str:
    """Text without lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be text in UTF-8") from None
    return value


def boolean(value: str) -> bool:
    """`true` or `false`, or a synonym."""
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    if value.lower() not in words:
        raise ValueError("must be true or false")
    return words[value.lower()]


def integer(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a parser for integers within bounds."""

    def parse(value: str) -> int:
        if not DIGITS.fullmatch(value) or not lowest <= int(value) <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return int(value)

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a parser for one of several words."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def comma_separated(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser for comma-separated lists, optionally limited to certain words."""

    def parse(value: str) -> tuple[str, ...]:
        items = _items(value)
        if allowed and not set(items) <= set(allowed):
            raise ValueError(f"may list only {', '.join(allowed)}")
        return items

    return parse


def dns_servers(value: str) -> tuple[str, ...]:
    """A list of IP addresses, each with a port or without."""
    for item in _items(value):
        try:
            parts = urlsplit(f"//{item}")
            ipaddress.ip_address(parts.hostname or "")
            valid = parts.port != 0 and parts.netloc == item and "@" not in item
        except ValueError:
            valid = False
        if not valid:
            raise ValueError("may list only IP addresses, such as 9.9.9.9 or [2620:fe::fe]:53")
    return _items(value)


def seconds(value: str) -> tuple[int, ...]:
    """A list of durations in seconds, each up to 30 days."""
    return tuple(map(integer(1, 30 * 86400), _items(value)))


def _items(value: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in value.split(",") if item.strip())


def url(*schemes: str) -> Callable[[str], str]:
    """Return a parser for URLs with one of these schemes; strips the trailing slash."""

    def parse(value: str) -> str:
        if _parts(value).scheme not in schemes:
            raise ValueError(f"must be a URL starting with {', '.join(f'{s}:' for s in schemes)}")
        parts = _parts(value)
        try:
            named = bool((parts.hostname or "").encode("idna")) and parts.port != 0
        except ValueError:  # an invalid port or name
            named = False
        if not named and parts.scheme not in WITHOUT_HOST:
            raise ValueError("must name a host, and a port from 1 to 65535 if any")
        return value.rstrip("/")

    return parse


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # its message may quote a password
        raise ValueError("must be a valid URL") from None


def base_url(value: str) -> str:
    """An http or https URL without a query."""
    parts = _parts(value)
    if parts.query or parts.fragment or parts.username or any(map(str.isspace, value)):
        raise ValueError("must not contain a user, query, fragment or whitespace")
    return url("http", "https")(value)


def root_url(value: str) -> str:
    """An http or https URL without a path: pages, assets and redirects begin at the root."""
    if _parts(value).path.strip("/"):
        raise ValueError("must not have a path: Atrium needs a host name of its own")
    return base_url(value)


def is_origin(text: str) -> bool:
    """Whether a text is an origin as browsers send it: no wildcard, path or default port."""
    match = ORIGIN.fullmatch(text)
    if match is None:
        return False
    scheme, port = match.groups()
    return port != DEFAULT_PORTS.get(scheme, "") and int(port or 1) <= 65_535


def origins(value: str) -> tuple[str, ...]:
    """A list of origins."""
    items = _items(value)
    if not all(map(is_origin, items)):
        raise ValueError("may list only exact origins such as https://app.example.com")
    return items


def mail_url(value: str) -> str:
    """The URL of a mail server."""
    parts = _parts(value)
    if not f"{unquote(parts.username or '')}{unquote(parts.password or '')}".isascii():
        raise ValueError("must have an ASCII user and password")
    # A misspelt starttls would send passwords in the clear.
    if parts.query not in ("", "starttls=0", "starttls=1"):
        raise ValueError("allows only the option starttls=0 or starttls=1")
    return url("console", "smtp", "smtps")(value)


def email(value: str) -> str:
    """An e-mail address."""
    from email_validator import EmailNotValidError, validate_email  # few settings are addresses

    try:
        validate_email(value, check_deliverability=False)
    except EmailNotValidError:
        raise ValueError("must be an e-mail address") from None
    return value


def sender(value: str) -> str:
    """An e-mail address, optionally with a name."""
    if not value.isprintable():
        raise ValueError("must be one line")
    named = getaddresses([value])
    if len(named) != 1:
        raise ValueError("must be one e-mail address")
    email(named[0][1])
    return value


def host(value: str) -> str:
    """A host name, in lower case."""
    if not HOST.fullmatch(value) or len(value) > 253:
        raise ValueError("must be a bare host name such as example.com")
    return value.lower()


def spf_mechanisms(value: str) -> tuple[str, ...]:
    """Mechanisms of SPF records (RFC 7208, section 5), in lower case."""
    items = tuple(item.lower() for item in _items(value))
    if not all(re.fullmatch(r"(include|a|mx|ip4|ip6|exists):[^\s,]+", item) for item in items):
        raise ValueError("may list only terms of SPF records such as include:spf.example.com")
    return items


def dkim_record(value: str) -> str:
    """The name of a DKIM record (RFC 6376, section 3.6.2.1), in lower case."""
    if host(value).split(".")[1:2] != ["_domainkey"]:
        raise ValueError("must be the name of a DKIM record such as s1._domainkey.example.com")
    return value.lower()


def account_slug(value: str) -> str:
    """The slug of an account, but not of the system account."""
    # Users of the system account are superadmins.
    problem = (
        "This one is reserved for superadmins." if value == SYSTEM_SLUG else slug_problem(value)
    )
    if problem:
        raise ValueError(f"must be the slug of an account. {problem}")
    return value


def single_line(value: str) -> str:
    """One line of text."""
    if not value.isprintable() or len(value) > 200:
        raise ValueError("must be one line of at most 200 characters")
    return value


def token(value: str) -> str:
    """Visible ASCII characters, as for an HTTP header."""
    if not TOKEN.fullmatch(value):
        raise ValueError("must contain only visible ASCII characters")
    return value


METERS = (
    "requests",
    "deliveries",
    "workflow_steps",
    "mails",
    "records",
    "row_bytes",
    "file_bytes",
)


def quotas(value: str) -> tuple[tuple[str, int], ...]:
    """Parse limits such as `requests=100000,file_bytes=10737418240`."""
    limits = dict(item.partition("=")[::2] for item in _items(value))
    if not all(name in METERS and NUMBER.fullmatch(limit) for name, limit in limits.items()):
        raise ValueError(f"must be name=number, comma-separated, of {', '.join(METERS)}")
    return tuple((name, int(limit)) for name, limit in limits.items())


def rate(value: str) -> str:
    """A rate such as `600/minute`, or `off`."""
    if value != "off" and not RATE.fullmatch(value):
        raise ValueError("must be off, or a number per second, minute, hour or day: 600/minute")
    return value


def is_32_bytes(text: str) -> bool:
    """Whether a text is 32 bytes in base64, as a Fernet key is."""
    try:
        return len(urlsafe_b64decode(text)) == 32
    except ValueError:
        return False
