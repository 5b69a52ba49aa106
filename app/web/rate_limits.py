"""Rate limits: fixed windows, counted in Redis if configured, else in the database.

All processes share the counters. Their keys (IP addresses, e-mail addresses) are hashed. The limits
stand where they are checked; those of sign-ins and mails are settings (`app/config/settings.py`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import prometheus_client
import sqlalchemy as sa
from limits import RateLimitItem, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db, jobs
from app.context import metrics
from app.db import engine
from app.db.policy import NotAudited, NotBundled, Placement, TablePolicy
from app.db.prepared import PreparedStatement
from app.db.types import Text
from app.errors import TooManyRequests
from app.types import cached_property

PURGED_AT_ONCE = 100
Result = TypeVar("Result")
REFUSED = prometheus_client.Counter(
    "atrium_rate_limited_total", "Attempts refused, by rate limit.", ("limit",), registry=None
)
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


class Counter(db.Base):
    """The attempts in the current window, which ends at `expires_at` (Unix time)."""

    __tablename__ = "rate_limits"
    __table_args__ = (sa.Index("ix_rate_limits_expires_at", "expires_at"),)
    __policy__ = TablePolicy(
        audit=NotAudited("counters of the rate limiter"),
        bundle=NotBundled("counters of the rate limiter"),
        placement=Placement.LOCAL,
    )

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    count: Mapped[int]
    expires_at: Mapped[float]


@dataclass(frozen=True)
class Limit:
    """At most `tries` attempts in `seconds` for each key."""

    name: str
    tries: int
    seconds: int

    def of(self, *parts: str | None) -> Allowance:
        """Return the allowance of the key that these parts make up."""
        text = "\0".join(part or "" for part in parts)
        return Allowance(self, hashlib.sha256(text.encode()).hexdigest())

    @cached_property
    def item(self) -> RateLimitItem:
        """Return the limit as the `limits` library's."""
        return RateLimitItemPerSecond(self.tries, self.seconds, namespace=self.name)


@dataclass(frozen=True)
class Allowance:
    limit: Limit
    key: str

    @cached_property
    def counter(self) -> str:
        return self.limit.item.key_for(self.key)


@lru_cache
def parse_rate(name: str, text: str) -> Limit:
    """Parse a setting such as `600/minute`."""
    tries, _, unit = text.partition("/")
    return Limit(name, int(tries), SECONDS[unit])


def client_network(address: str | None) -> str:
    """Return what a client is counted by: its IPv4 address, or its IPv6 /64 network.

    Who has one IPv6 address usually has the 2^64 of its network.
    """
    try:
        ip = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))


def wide_network(address: str | None) -> str:
    """Return a client's network where one user is concerned: its IPv4 address, or its IPv6 /48.

    Who rents a server often has the 65,536 networks of a /48; two people with the same user do not.
    """
    network = client_network(address)
    if "/" not in network:
        return network
    return str(ipaddress.ip_network(network).supernet(new_prefix=48))


def check(*allowances: Allowance) -> None:
    """Raise TooManyRequests, with the seconds to wait, if any allowance is used up."""
    used_up = _with_fallback(partial(_used_up, allowances))
    if used_up:
        end, name = max(used_up)
        raise _too_many(name, end)


def consume(*allowances: Allowance) -> None:
    """Count an attempt against each allowance in turn. Raises TooManyRequests at the first used up.

    Counting and deciding is one atomic step, so concurrent attempts cannot exceed the limit.
    """
    for allowance in allowances:
        if not _with_fallback(partial(_hit, allowance)):
            raise _too_many(allowance.limit.name, _with_fallback(partial(_end, allowance)))


def increment(allowance: Allowance, amount: int) -> int:
    """Count several attempts at once; returns the total of the current window."""
    return int(_with_fallback(partial(_add, amount, allowance)))


def take(allowance: Allowance) -> int:
    """Return the count of the current window, and end it."""
    return _with_fallback(partial(_take, allowance))


def _take(allowance: Allowance, limiter: FixedWindowRateLimiter) -> int:
    number = limiter.storage.get(allowance.counter)
    limiter.storage.clear(allowance.counter)
    return number


def _add(amount: int, allowance: Allowance, limiter: FixedWindowRateLimiter) -> int:
    return limiter.storage.incr(allowance.counter, allowance.limit.seconds, amount=amount)


def _too_many(name: str, end: float) -> TooManyRequests:
    metrics.count(REFUSED, name)
    return TooManyRequests(max(1, math.ceil(end - clock.now().timestamp())))


def _used_up(
    allowances: Sequence[Allowance], limiter: FixedWindowRateLimiter
) -> list[tuple[float, str]]:
    keys = [allowance.counter for allowance in allowances]
    storage = limiter.storage
    counts = storage.counts(keys) if isinstance(storage, SqlStorage) else map(storage.get, keys)
    pairs = zip(allowances, counts, strict=True)
    return [
        (_end(item, limiter), item.limit.name) for item, tries in pairs if tries >= item.limit.tries
    ]


def _end(allowance: Allowance, limiter: FixedWindowRateLimiter) -> float:
    return limiter.get_window_stats(allowance.limit.item, allowance.key)[0]


def _hit(allowance: Allowance, limiter: FixedWindowRateLimiter) -> bool:
    return limiter.hit(allowance.limit.item, allowance.key)


def _with_fallback(function: Callable[[FixedWindowRateLimiter], Result]) -> Result:
    try:
        return function(_limiter_for(config.current().redis_url))
    except StorageError:  # Redis is down: the database takes over
        return function(_limiter_for(""))


@lru_cache
def _limiter_for(redis_url: str) -> FixedWindowRateLimiter:
    if not redis_url:
        return FixedWindowRateLimiter(SqlStorage())
    pool = jobs.redis_client(redis_url).connection_pool
    storage = RedisStorage(redis_url, connection_pool=pool, wrap_exceptions=True)
    return FixedWindowRateLimiter(storage)


@lru_cache
def _counts(number: int) -> PreparedStatement:
    own = sa.or_(*(Counter.key == sa.bindparam(f"key{i}") for i in range(number)))
    alive = Counter.expires_at > sa.bindparam("now")
    return PreparedStatement(sa.select(Counter.key, Counter.count).where(own, alive), keyed=True)


class SqlStorage(Storage):
    """A storage of the `limits` library in the application's database."""

    STORAGE_SCHEME = ["atrium-sql"]  # noqa: RUF012 - as the library declares it

    @property
    def base_exceptions(self) -> type[Exception]:
        """Return the errors that the storage raises."""
        return sa.exc.SQLAlchemyError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Increment a counter, in a new window if the last has ended; one atomic statement."""
        now = clock.now().timestamp()
        is_sqlite = engine.current_engine().dialect.name == "sqlite"
        insert = sqlite.insert if is_sqlite else postgresql.insert
        new = insert(Counter).values(key=key, count=amount, expires_at=now + expiry)
        over = Counter.expires_at <= now
        counted = new.on_conflict_do_update(
            index_elements=[Counter.key],
            set_={
                "count": sa.case((over, amount), else_=Counter.count + amount),
                "expires_at": sa.case((over, now + expiry), else_=Counter.expires_at),
            },
        )
        with db.transaction() as session:
            count = int(session.execute(counted.returning(Counter.count)).scalar_one())
        if count == amount:
            self._purge(now)
        return count

    def _purge(self, now: float) -> None:
        # Each new window deletes several expired ones, so that the table stays small.
        old = sa.select(Counter.key).where(Counter.expires_at <= now).limit(PURGED_AT_ONCE)
        # Concurrent purges lock different rows, and never wait for each other. The keys are read
        # first: as a subquery of the DELETE, PostgreSQL might run the selection more than once.
        batch = old.order_by(Counter.expires_at).with_for_update(skip_locked=True)
        with db.transaction() as session:
            self._remove(Counter.key.in_(session.scalars(batch).all()))

    def get(self, key: str) -> int:
        """Return the count of the current window."""
        return self.counts([key])[0]

    def counts(self, keys: Sequence[str]) -> list[int]:
        """Return the counts of the current windows."""
        if not keys:
            return []
        now = clock.now().timestamp()
        parameters = {f"key{i}": key for i, key in enumerate(keys)} | {"now": now}
        counts = dict(_counts(len(keys)).all(parameters))
        return [counts.get(key, 0) for key in keys]

    def get_expiry(self, key: str) -> float:
        """Return when the current window ends."""
        expires_at = db.db.session.scalar(sa.select(Counter.expires_at).where(Counter.key == key))
        return expires_at or clock.now().timestamp()

    def check(self) -> bool:
        """Whether the database responds."""
        return db.connection().scalar(sa.select(sa.literal(1))) == 1

    def reset(self) -> int | None:
        """Delete all counters."""
        return self._remove()

    def clear(self, key: str) -> None:
        """Delete one counter."""
        self._remove(Counter.key == key)

    def _remove(self, *where: sa.ColumnElement[bool]) -> int:
        with db.transaction() as session:
            result: Any = session.execute(sa.delete(Counter).where(*where))
        return int(result.rowcount)
