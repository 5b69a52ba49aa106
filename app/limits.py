"""How often something may be tried: counted in Redis when there is one, else in the database.

Counters are shared by all processes. What is counted (addresses, e-mail addresses) is hashed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db, jobs
from app.errors import TooManyRequests


class Counter(db.Base):
    """How often something was tried in the present window (seconds since the epoch)."""

    __tablename__ = "rate_limits"
    __table_args__ = (sa.Index("ix_rate_limits_expires_at", "expires_at"),)

    key: Mapped[str] = mapped_column(db.Text, primary_key=True)
    count: Mapped[int]
    expires_at: Mapped[float]


@dataclass(frozen=True)
class Limit:
    """So many tries in so many minutes for each of what is named."""

    name: str
    tries: int
    minutes: int

    def of(self, *named: str | None) -> Allowance:
        """The limit as it applies to these."""
        text = "\0".join(one or "" for one in named)
        return Allowance(self, hashlib.sha256(text.encode()).hexdigest())

    @property
    def item(self) -> RateLimitItem:
        """The limit as the library knows it."""
        return RateLimitItemPerMinute(self.tries, self.minutes, namespace=self.name)


@dataclass(frozen=True)
class Allowance:
    """What is left of a limit for somebody."""

    limit: Limit
    key: str


def check(*allowances: Allowance) -> None:
    """Refuse when any of them is used up. Raises TooManyRequests with the seconds to wait."""
    ends = [end for one in allowances if (end := _counted(_spent, one))]
    if ends:
        raise TooManyRequests(max(1, math.ceil(max(ends) - clock.now().timestamp())))


def use(*allowances: Allowance) -> None:
    """Count one more try against each."""
    for one in allowances:
        _counted(_hit, one)


def check_and_use(*allowances: Allowance) -> None:
    """Count a try that is allowed. Raises TooManyRequests."""
    check(*allowances)
    use(*allowances)


def _spent(limiter: FixedWindowRateLimiter, one: Allowance) -> float | None:
    item = one.limit.item
    return None if limiter.test(item, one.key) else limiter.get_window_stats(item, one.key)[0]


def _hit(limiter: FixedWindowRateLimiter, one: Allowance) -> None:
    limiter.hit(one.limit.item, one.key)


def _counted(count: Callable[[FixedWindowRateLimiter, Allowance], Any], one: Allowance) -> Any:
    if config.current().login_rate_limit == "off":
        return None
    try:
        return count(_limiter_for(config.current().redis_url), one)
    except StorageError:  # Redis is away: the database counts on
        return count(_limiter_for(""), one)


@lru_cache
def _limiter_for(redis_url: str) -> FixedWindowRateLimiter:
    if not redis_url:
        return FixedWindowRateLimiter(SqlStorage())
    pool = jobs.redis_client(redis_url).connection_pool
    storage = RedisStorage(redis_url, connection_pool=pool, wrap_exceptions=True)
    return FixedWindowRateLimiter(storage)


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
        make: Any = sqlite if db.db.engine.dialect.name == "sqlite" else postgresql
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
            return int(session.execute(counted.returning(Counter.count)).scalar_one())

    def get(self, key: str) -> int:
        """The count in the present window."""
        alive = (Counter.key == key, Counter.expires_at > clock.now().timestamp())
        return db.db.session.scalar(sa.select(Counter.count).where(*alive)) or 0

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
