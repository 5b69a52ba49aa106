"""Parsers of settings: each returns the value of a text, or raises ValueError."""

from __future__ import annotations

import ipaddress
import re
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Callable
from email.utils import getaddresses
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import psycopg2
import sqlalchemy as sa
from psycopg2.extensions import make_dsn
from sqlalchemy.exc import ArgumentError, SAWarning

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
EXTENSION = re.compile(r"[a-z][a-z0-9_]{0,39}")
NUMBER = re.compile("[0-9]{1,18}")
REDIS_OPTIONS = re.compile(
    "db|username|password|client_name|protocol|max_connections|health_check_interval"
    "|socket_timeout|socket_connect_timeout|socket_keepalive|retry_on_timeout|ssl_[a-z_]+"
)


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


def extensions(value: str) -> tuple[str, ...]:
    """A list of names of extensions, each once."""
    names = _items(value)
    if not all(map(EXTENSION.fullmatch, names)) or len(set(names)) < len(names):
        raise ValueError(
            "must list extensions, each once, by names of lower-case letters, digits and _"
        )
    return names


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


def database(text: str) -> str:
    """Return a database URL with its driver. Raises ValueError without the URL."""
    # SQLAlchemy reads "postgresql://" as psycopg 3 and does not know "postgres://".
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("postgres", "postgresql", "postgresql+psycopg2"):
        text = f"postgresql+psycopg2://{rest}"
    elif not separator or scheme != "sqlite":
        raise ValueError("must start with postgresql:// or sqlite://")
    try:
        _check_database(sa.make_url(text))
    except (ArgumentError, SAWarning, ValueError, TypeError, psycopg2.Error):
        raise ValueError(
            "must be postgresql://user:password@host:port/name or sqlite:////folder/file"
            " with no option but the driver's"
        ) from None
    return text


def postgres(text: str) -> str:
    """Return the URL of a PostgreSQL database with its driver. Raises ValueError without it."""
    url = database(text)
    if not url.startswith("postgresql"):
        raise ValueError("must start with postgresql://")
    return url


def _check_database(url: sa.URL) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SAWarning)  # for SQLite options that it ignores
        addresses, options = url.get_dialect()().create_connect_args(url)
    if url.drivername == "sqlite":
        # In memory every process would have its own database, without tables.
        if any(":memory:" in place or "mode=memory" in place for place in addresses):
            raise ValueError
        return
    make_dsn(**options)
    if url.port is not None and not 0 < url.port <= 65_535:
        raise ValueError


def redis(text: str) -> str:
    """Return a Redis URL. Raises ValueError without the URL."""
    from redis.exceptions import RedisError

    text = text.rstrip("/")
    try:
        _check_redis(text)
    except (ValueError, TypeError, RedisError):
        raise ValueError(
            "must be redis://:password@host:port/number or unix:///folder/socket"
            " with no option but the driver's"
        ) from None
    return text


def _check_redis(url: str) -> None:
    from redis.connection import ConnectionPool, parse_url

    parts, options = urlsplit(url), parse_url(url)  # type: ignore[no-untyped-call]
    ConnectionPool.from_url(url).make_connection()
    local = parts.scheme == "unix"
    if not (parts.path if local else parts.hostname and re.fullmatch(r"/?[0-9]*", parts.path)):
        raise ValueError
    if parts.port == 0 or not all(map(REDIS_OPTIONS.fullmatch, parse_qs(parts.query))):
        raise ValueError
    numbers = [value for value in options.values() if isinstance(value, float | int)]
    if not all(0 <= number < 2**31 for number in numbers) or options.get("max_connections") == 0:
        raise ValueError


def backup_target(text: str) -> str:
    """Return the URL of an S3 bucket, or the path of a folder. Raises ValueError without it."""
    if urlsplit(text).scheme == "s3":
        return bucket(text)
    if not text.startswith("/"):
        raise ValueError("must be a folder (/backups) or s3://key:secret@bucket/prefix?region=...")
    return text


def bucket(text: str) -> str:
    """Return the URL of an S3 bucket. Raises ValueError without the URL."""
    parts = urlsplit(text)
    options = parse_qs(parts.query, keep_blank_values=True)
    endpoint = urlsplit(options.get("endpoint", ["https://host"])[0])
    is_valid = parts.scheme == "s3" and parts.hostname and options.keys() <= {"region", "endpoint"}
    if not is_valid or endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise ValueError("must be s3://key:secret@bucket/prefix?region=...&endpoint=https://...")
    return text
