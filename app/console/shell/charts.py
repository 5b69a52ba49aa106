"""Bar charts of daily counts, and figures; each query counts rows that an index finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import sqlalchemy as sa
from flask import url_for

from app import clock
from app.accounts.usage.models import FILE_BYTES, ROW_BYTES, STOCKS
from app.audit import append, recent
from app.auth.models import SignInSession
from app.collections.definitions import Definition
from app.console.shell import lists
from app.db import counts
from app.db.counts import Row, count_up_to
from app.types import cached_property
from app.web.languages import gettext
from app.webhooks.models import DELIVERIES, DeliveryState

DAYS = 30
# Charts count at most this many of the newest rows unless `?count=all` asks for all.
MAX_RECORDS, MAX_OTHERS = 10_000, 2_000
CREATED, USED = "created", "used"
KIND_BY_OPERATION = {append.CREATE: CREATED, append.UPDATE: "updated", append.DELETE: "deleted"}
WIDTH, HEIGHT = 12, 80  # of a day's column; of the highest bar
SESSIONS: Any = SignInSession.__table__
Counts = Counter[tuple[str, str]]  # by day and kind


@dataclass(frozen=True)
class Bar:
    """A segment of a day's bar."""

    day: date
    kind: str
    count: int
    x: int
    y: float
    height: float


@dataclass(frozen=True)
class Chart:
    """Daily counts by kind."""

    name: str
    title: str
    kinds: Sequence[str]
    days: Sequence[date]
    counts: Counts
    partial: bool
    """Whether older rows are left out to limit the work."""
    is_level: bool = False
    """Whether the counts are levels, which do not add up."""
    is_size: bool = False
    """Whether the counts are bytes."""

    def format(self, count: int) -> str:
        return lists.format_size(count) if self.is_size else lists.format_number(count)

    def count(self, day: date, kind: str) -> int:
        return self.counts[day.isoformat(), kind]

    def total(self, kind: str) -> int:
        """The count of one kind on all days; of a level, the last one."""
        if self.is_level:
            return self.count(self.days[-1], kind)
        return sum(self.count(day, kind) for day in self.days)

    def day_total(self, day: date) -> int:
        """The count of all kinds on a day."""
        return sum(self.count(day, kind) for kind in self.kinds)

    @cached_property
    def highest(self) -> int:
        """The count of the busiest day."""
        return max(map(self.day_total, self.days))

    @property
    def needs_scale(self) -> bool:
        """Whether the busiest day differs from what the legend says."""
        return self.highest != sum(map(self.total, self.kinds))

    @property
    def width(self) -> int:
        return WIDTH * len(self.days)

    def bars(self) -> Iterator[Bar]:
        """The bars; those of one day are stacked."""
        for n, day in enumerate(self.days):
            top = float(HEIGHT)
            for kind in self.kinds:
                count = self.count(day, kind)
                height = round(count / max(1, self.highest) * HEIGHT, 2)
                top = round(top - height, 2)
                if count:
                    yield Bar(day, kind, count, n * WIDTH + 1, top, height)


def records_chart(account_id: str, collections: Sequence[Definition], *, count_all: bool) -> Chart:
    """Records of some collections in an account, by the day of creation."""
    limit = _limit_per_source(MAX_RECORDS, collections, count_all)
    rows = counts.count_by_day(
        [_select_records(account_id, collection, limit) for collection in collections]
    )
    return _chart("records", gettext("Records created"), [CREATED], rows, limit)


def _select_records(account_id: str, collection: Definition, limit: int | None) -> object:
    table = collection.table.c
    kind, source = sa.literal(CREATED).label("kind"), sa.literal(collection.id).label("source")
    query = sa.select(counts.day(table.created_at), kind, source).where(
        table.account_id == account_id, table.created_at >= _period_start()
    )
    return query.order_by(table.created_at.desc(), table.id.asc()).limit(limit)


def changes_chart(*, count_all: bool) -> Chart:
    """Entries of the audit log in all accounts, by day."""
    limit = _limit_per_source(MAX_OTHERS, ("",), count_all)
    newest = recent.select_days(None, _period_start(), limit)
    rows = [
        (day, KIND_BY_OPERATION[kind], source, number)
        for day, kind, source, number in counts.count_by_day([newest])
    ]
    return _chart("changes", gettext("Changes"), list(KIND_BY_OPERATION.values()), rows, limit)


def deliveries_chart(accounts: Sequence[str], *, count_all: bool) -> Chart:
    """Webhook deliveries of some accounts, by the day of the change."""
    limit = _limit_per_source(MAX_OTHERS, accounts, count_all)
    rows = _newest_rows(DELIVERIES.c, DELIVERIES.c.status, accounts, limit)
    return _chart(
        "deliveries",
        gettext("Deliveries"),
        [DeliveryState.DELIVERED, DeliveryState.FAILED],
        rows,
        limit,
    )


def sign_ins_chart(accounts: Sequence[str], *, count_all: bool) -> Chart:
    """Sign-ins of the users of some accounts, by day."""
    limit = _limit_per_source(MAX_OTHERS, accounts, count_all)
    rows = _newest_rows(SESSIONS.c, SESSIONS.c.kind, accounts, limit)
    return _chart("sign-ins", gettext("Sign-ins"), ["api", "console"], rows, limit)


def usage_chart(meter: str, title: str, items: Sequence[Mapping[str, Any]]) -> Chart:
    """The usage of a meter by an account, by day."""
    counts = Counts({(item["day"].isoformat(), USED): item[meter] or 0 for item in items})
    days = [item["day"] for item in items]
    is_level = meter in STOCKS
    is_size = meter in (ROW_BYTES, FILE_BYTES)
    name = f"usage-{meter}"
    return Chart(name, title, [USED], days, counts, False, is_level=is_level, is_size=is_size)


def _limit_per_source(limit: int, sources: Sequence[object], count_all: bool) -> int | None:
    return None if count_all else max(1, limit // max(1, len(sources)))


def _chart(
    name: str, title: str, kinds: Sequence[str], rows: Sequence[Row], limit: int | None
) -> Chart:
    counts, by_source = Counts(), Counter[str]()
    for day, kind, source, number in rows:
        counts[day, kind] += number
        by_source[source] += number
    partial = limit is not None and any(number >= limit for number in by_source.values())
    today = clock.now().date()
    days = [today - timedelta(days=offset) for offset in reversed(range(DAYS))]
    return Chart(name, title, kinds, days, counts, partial)


def _period_start() -> datetime:
    first_day = clock.now().date() - timedelta(days=DAYS - 1)
    return datetime.combine(first_day, time(), UTC)


def _newest_rows(
    table: Any, kind: Any, accounts: Sequence[str], limit: int | None
) -> Sequence[Row]:
    since = _period_start()
    return counts.count_by_day(
        [
            counts.select_newest_by_day(table, kind, since, limit, account_id)
            for account_id in accounts
        ]
    )


@dataclass(frozen=True)
class Figure:
    """A number, and the page of what it counts, if there is one."""

    name: str
    value: str
    url: str | None = None
    is_bad: bool = False


def linked(name: str, value: str, endpoint: str, **url_args: Any) -> Figure:
    return Figure(name, value, url_for(f"console.{endpoint}", **url_args))


def format_count(model: Any, *where: Any) -> str:
    """The number of rows, as far as figures count."""
    return lists.format_count(count_up_to(model, where, lists.MAX_COUNTED))
