"""What happened day by day, counted from rows that an index finds, and drawn as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.auth.models import SignInSession
from app.collections.definition import Definition
from app.webhooks.models import DELIVERED, DELIVERIES, FAILED

DAYS = 30
# No page counts more rows than these, the newest ones, unless it is asked for all.
MOST_RECORDS, MOST_OTHERS = 20_000, 3_000
TOGETHER = 100  # collections in one statement
MADE = "made"
WIDTH, HEIGHT = 12, 80  # of a day's bar and the space beside it; of the highest bar
SESSIONS: Any = SignInSession.__table__
Counts = Counter[tuple[str, str]]  # by day and kind


@dataclass(frozen=True)
class Bar:
    """A part of a day, as it is drawn."""

    day: date
    kind: str
    count: int
    x: int
    y: float
    height: float


@dataclass(frozen=True)
class Chart:
    """Counts of the last days, by kind."""

    name: str
    title: str
    kinds: Sequence[str]
    days: Sequence[date]
    counts: Counts
    partial: bool
    """Whether older ones are left out, as counting them would take too long."""

    def count(self, day: date, kind: str) -> int:
        """How many there were of a kind on a day."""
        return self.counts[day.isoformat(), kind]

    def total(self, kind: str) -> int:
        """How many there were of a kind on all days."""
        return sum(self.count(day, kind) for day in self.days)

    def of_day(self, day: date) -> int:
        """How many there were on a day."""
        return sum(self.count(day, kind) for kind in self.kinds)

    @cached_property
    def highest(self) -> int:
        """How many there were on the day that has most."""
        return max(map(self.of_day, self.days))

    @property
    def width(self) -> int:
        """How wide the drawing is."""
        return WIDTH * len(self.days)

    def bars(self) -> Iterator[Bar]:
        """The bars, of a day one upon the other."""
        for n, day in enumerate(self.days):
            top = float(HEIGHT)
            for kind in self.kinds:
                count = self.count(day, kind)
                height = round(count / max(1, self.highest) * HEIGHT, 2)
                top = round(top - height, 2)
                if count:
                    yield Bar(day, kind, count, n * WIDTH + 1, top, height)


def of_records(account_id: str, opened: Sequence[Definition], *, whole: bool) -> Chart:
    """The records of some collections that were made in an account and are still there."""
    share = None if whole else max(1, MOST_RECORDS // max(1, len(opened)))
    by_collection = Counts()
    for first in range(0, len(opened), TOGETHER):
        some = opened[first : first + TOGETHER]
        by_collection += _counted([_records(account_id, one, share) for one in some])
    made, of_each = Counts(), Counter[str]()
    for (day, collection), count in by_collection.items():
        made[day, MADE] += count
        of_each[collection] += count
    partial = share is not None and any(count >= share for count in of_each.values())
    return _chart("records", "Records made", [MADE], made, partial)


def _records(account_id: str, collection: Definition, most: int | None) -> Any:
    table = collection.table.c
    chosen = sa.select(
        _day(table.created_at).label("day"), sa.literal(collection.id).label("kind")
    ).where(table.account_id == account_id, table.created_at >= _begun())
    return chosen.order_by(table.created_at.desc(), table.id.asc()).limit(most)


def of_deliveries(account_id: str, *, whole: bool) -> Chart:
    """The deliveries of an account's webhooks, by the day of the change."""
    counts, partial = _newest(DELIVERIES.c, DELIVERIES.c.status, account_id, whole)
    return _chart("deliveries", "Deliveries", [DELIVERED, FAILED], counts, partial)


def of_sign_ins(account_id: str, *, whole: bool) -> Chart:
    """The sign-ins of an account's users, by programs and at the console."""
    counts, partial = _newest(SESSIONS.c, SESSIONS.c.kind, account_id, whole)
    return _chart("sign-ins", "Sign-ins", ["api", "console"], counts, partial)


def _chart(name: str, title: str, kinds: Sequence[str], counts: Counts, partial: bool) -> Chart:
    today = clock.now().date()
    days = [today - timedelta(days=before) for before in reversed(range(DAYS))]
    return Chart(name, title, kinds, days, counts, partial)


def _begun() -> datetime:
    first = clock.now().date() - timedelta(days=DAYS - 1)
    return datetime.combine(first, time(), UTC)


def _newest(table: Any, kind: Any, account_id: str, whole: bool) -> tuple[Counts, bool]:
    # Ids are made in the order of time, and an index begins with account and id.
    mine = (table.account_id == account_id, table.id >= db.first_id(_begun()))
    chosen = sa.select(_day(table.created_at).label("day"), kind.label("kind")).where(*mine)
    most = None if whole else MOST_OTHERS
    counts = _counted([chosen.order_by(table.id.desc()).limit(most)])
    return counts, most is not None and counts.total() >= most


def _day(moment: Any) -> Any:
    if db.connection().dialect.name == "sqlite":
        return sa.func.substr(moment, 1, 10, type_=sa.Text())
    return sa.func.to_char(sa.func.timezone("UTC", moment), "YYYY-MM-DD")


def _counted(chosen: Sequence[Any]) -> Counts:
    rows = sa.union_all(*(sa.select(one.subquery()) for one in chosen)).subquery().c
    counted = sa.select(rows.day, rows.kind, sa.func.count()).group_by(rows.day, rows.kind)
    return Counter({(day, kind): count for day, kind, count in db.connection().execute(counted)})
