"""Validates the URLs of the database and of Redis."""

from __future__ import annotations

import re
import warnings
from urllib.parse import parse_qs, urlsplit

import psycopg2
import sqlalchemy as sa
from psycopg2.extensions import make_dsn
from sqlalchemy.exc import ArgumentError, SAWarning

REDIS_OPTIONS = re.compile(
    "db|username|password|client_name|protocol|max_connections|health_check_interval"
    "|socket_timeout|socket_connect_timeout|socket_keepalive|retry_on_timeout|ssl_[a-z_]+"
)


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
