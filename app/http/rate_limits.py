"""How often something may be tried: counted in Redis when there is one, else in the database.

Counters are shared by all processes. What is counted (addresses, e-mail addresses) is hashed.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import sqlalchemy as sa
from limits import RateLimitItem, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db, jobs
from app.db import engine
from app.db.prepared import PreparedStatement
from app.db.types import Text
from app.errors import TooManyRequests

PURGED_AT_ONCE = 100
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


class Counter(db.Base):
    """How often something was tried in the present window (seconds since the epoch)."""

    __tablename__ = "rate_limits"
    __table_args__ = (sa.Index("ix_rate_limits_expires_at", "expires_at"),)

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    count: Mapped[int]
    expires_at: Mapped[float]


@dataclass(frozen=True)
class Limit:
    """So many tries in so many seconds for each of what is named."""

    name: str
    tries: int
    seconds: int

    def of(self, *named: str | None) -> Allowance:
        """The limit as it applies to these."""
        text = "\0".join(one or "" for one in named)
        return Allowance(self, hashlib.sha256(text.encode()).hexdigest())

    @cached_property
    def item(self) -> RateLimitItem:
        """The limit as the library knows it."""
        return RateLimitItemPerSecond(self.tries, self.seconds, namespace=self.name)


@dataclass(frozen=True)
class Allowance:
    """What is left of a limit for somebody."""

    limit: Limit
    key: str

    @cached_property
    def counter(self) -> str:
        """The key of its counter."""
        return self.limit.item.key_for(self.key)


@lru_cache
def parse_rate(name: str, text: str) -> Limit:
    """The limit that a setting such as `600/minute` means."""
    tries, _, unit = text.partition("/")
    return Limit(name, int(tries), SECONDS[unit])


def client_network(address: str | None) -> str:
    """The address that a request is counted under.

    Of IPv6 it is the network: whoever has one address has all of its 2^64.
    """
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def check(*allowances: Allowance) -> None:
    """Refuse when any of them is used up. Raises TooManyRequests with the seconds to wait."""
    ends = _counted(_spent, allowances)
    if ends:
        raise _until(max(ends))


def consume(*allowances: Allowance) -> None:
    """Count a try against each in turn, until it is one too many: counting and deciding is one
    step, so of tries at once exactly as many pass as are left. Raises TooManyRequests.
    """
    for one in allowances:
        if not _counted(_hit, one):
            raise _until(_counted(_end, one))


def increment(allowance: Allowance, amount: int) -> int:
    """Count so many tries at once; returns how many that makes in the present window."""
    return int(_counted(partial(_add, amount), allowance))


def _add(amount: int, limiter: FixedWindowRateLimiter, one: Allowance) -> int:
    return limiter.storage.incr(one.counter, one.limit.seconds, amount=amount)


def _until(end: float) -> TooManyRequests:
    return TooManyRequests(max(1, math.ceil(end - clock.now().timestamp())))


def _spent(limiter: FixedWindowRateLimiter, allowances: Sequence[Allowance]) -> list[float]:
    """When those of them end that are used up."""
    keys = [one.counter for one in allowances]
    storage = limiter.storage
    counts = storage.counts(keys) if isinstance(storage, SqlStorage) else map(storage.get, keys)
    both = zip(allowances, counts, strict=True)
    return [_end(limiter, one) for one, count in both if count >= one.limit.tries]


def _end(limiter: FixedWindowRateLimiter, one: Allowance) -> float:
    return limiter.get_window_stats(one.limit.item, one.key)[0]


def _hit(limiter: FixedWindowRateLimiter, one: Allowance) -> bool:
    return limiter.hit(one.limit.item, one.key)


def _counted(count: Callable[[FixedWindowRateLimiter, Any], Any], of: Any) -> Any:
    try:
        return count(_limiter_for(config.current().redis_url), of)
    except StorageError:  # Redis is away: the database counts on
        return count(_limiter_for(""), of)


@lru_cache
def _limiter_for(redis_url: str) -> FixedWindowRateLimiter:
    if not redis_url:
        return FixedWindowRateLimiter(SqlStorage())
    pool = jobs.redis_client(redis_url).connection_pool
    storage = RedisStorage(redis_url, connection_pool=pool, wrap_exceptions=True)
    return FixedWindowRateLimiter(storage)


@lru_cache
def _counts(number: int) -> PreparedStatement:
    mine = sa.or_(*(Counter.key == sa.bindparam(f"key{i}") for i in range(number)))
    alive = Counter.expires_at > sa.bindparam("now")
    return PreparedStatement(sa.select(Counter.key, Counter.count).where(mine, alive), keyed=True)


class SqlStorage(Storage):
    """Counters in the application's own database, for where there is no Redis."""

    STORAGE_SCHEME = ["atrium-sql"]  # noqa: RUF012 - as the library declares it

    @property
    def base_exceptions(self) -> type[Exception]:
        """What may go wrong."""
        return sa.exc.SQLAlchemyError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count up, in a new window where the last one is over. One statement, so none is lost."""
        now = clock.now().timestamp()
        make: Any = sqlite if engine.current_engine().dialect.name == "sqlite" else postgresql
        new = make.insert(Counter).values(key=key, count=amount, expires_at=now + expiry)
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
        # Each window that begins takes away more that are over, so that the table stays small.
        old = sa.select(Counter.key).where(Counter.expires_at <= now).limit(PURGED_AT_ONCE)
        # Two who purge at once take different rows, and never wait for each other. The keys are
        # read first: within the deletion PostgreSQL may look for a piece more than once.
        piece = old.order_by(Counter.expires_at).with_for_update(skip_locked=True)
        with db.transaction() as session:
            self._remove(Counter.key.in_(session.scalars(piece).all()))

    def get(self, key: str) -> int:
        """The count in the present window."""
        return self.counts([key])[0]

    def counts(self, keys: Sequence[str]) -> list[int]:
        """The counts in the present windows."""
        if not keys:
            return []
        now = clock.now().timestamp()
        given = {f"key{i}": key for i, key in enumerate(keys)} | {"now": now}
        found = dict(_counts(len(keys)).all(given))
        return [found.get(key, 0) for key in keys]

    def get_expiry(self, key: str) -> float:
        """When the present window ends."""
        expires_at = db.db.session.scalar(sa.select(Counter.expires_at).where(Counter.key == key))
        return expires_at or clock.now().timestamp()

    def check(self) -> bool:
        """Whether the database answers."""
        return db.connection().scalar(sa.select(sa.literal(1))) == 1

    def reset(self) -> int | None:
        """Forget every count."""
        return self._remove()

    def clear(self, key: str) -> None:
        """Forget one count."""
        self._remove(Counter.key == key)

    def _remove(self, *which: Any) -> int:
        with db.transaction() as session:
            removed: Any = session.execute(sa.delete(Counter).where(*which))
        return int(removed.rowcount)
