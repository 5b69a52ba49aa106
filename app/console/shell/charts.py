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
from app.audit import append
from app.audit.entries import CHANGES
from app.auth.models import SignInSession
from app.collections.definition import Definition
from app.ids import first_id
from app.webhooks.models import DELIVERED, DELIVERIES, FAILED

DAYS = 30
# No page counts more rows than these, the newest ones, unless it is asked for all.
MOST_RECORDS, MOST_OTHERS = 10_000, 2_000
TOGETHER = 100  # collections or accounts in one statement
MADE = "made"
KINDS = {append.CREATE: MADE, append.UPDATE: "changed", append.DELETE: "deleted"}
WIDTH, HEIGHT = 12, 80  # of a day's bar and the space beside it; of the highest bar
SESSIONS: Any = SignInSession.__table__
Counts = Counter[tuple[str, str]]  # by day and kind
Row = tuple[str, str, str, int]  # day, kind, where from, how many


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
    share = _share(MOST_RECORDS, opened, whole)
    found = _counted([_records(account_id, one, share) for one in opened])
    return _chart("records", "Records made", [MADE], found, share)


def _records(account_id: str, collection: Definition, most: int | None) -> Any:
    table = collection.table.c
    kind, source = sa.literal(MADE).label("kind"), sa.literal(collection.id).label("source")
    chosen = sa.select(_day(table.created_at), kind, source).where(
        table.account_id == account_id, table.created_at >= _begun()
    )
    return chosen.order_by(table.created_at.desc(), table.id.asc()).limit(most)


def of_changes(*, whole: bool) -> Chart:
    """What the audit log tells was changed, in all accounts."""
    made, kind = CHANGES.c.occurred_at, CHANGES.c.operation.label("kind")
    chosen = sa.select(_day(made), kind, sa.literal("").label("source")).where(made >= _begun())
    share = _share(MOST_OTHERS, (CHANGES,), whole)
    ordered = chosen.order_by(made.desc(), CHANGES.c.first_id.desc())
    found = [
        (day, KINDS[kind], source, number)
        for day, kind, source, number in _counted([ordered.limit(share)])
    ]
    return _chart("changes", "Changes", list(KINDS.values()), found, share)


def of_deliveries(accounts: Sequence[str], *, whole: bool) -> Chart:
    """The deliveries of some accounts' webhooks, by the day of the change."""
    share = _share(MOST_OTHERS, accounts, whole)
    found = _newest(DELIVERIES.c, DELIVERIES.c.status, accounts, share)
    return _chart("deliveries", "Deliveries", [DELIVERED, FAILED], found, share)


def of_sign_ins(accounts: Sequence[str], *, whole: bool) -> Chart:
    """The sign-ins of some accounts' users, by programs and at the console."""
    share = _share(MOST_OTHERS, accounts, whole)
    found = _newest(SESSIONS.c, SESSIONS.c.kind, accounts, share)
    return _chart("sign-ins", "Sign-ins", ["api", "console"], found, share)


def _share(most: int, sources: Sequence[Any], whole: bool) -> int | None:
    return None if whole else max(1, most // max(1, len(sources)))


def _chart(
    name: str, title: str, kinds: Sequence[str], found: Sequence[Row], share: int | None
) -> Chart:
    counts, of_each = Counts(), Counter[str]()
    for day, kind, source, number in found:
        counts[day, kind] += number
        of_each[source] += number
    partial = share is not None and any(number >= share for number in of_each.values())
    today = clock.now().date()
    days = [today - timedelta(days=before) for before in reversed(range(DAYS))]
    return Chart(name, title, kinds, days, counts, partial)


def _begun() -> datetime:
    first = clock.now().date() - timedelta(days=DAYS - 1)
    return datetime.combine(first, time(), UTC)


def _newest(table: Any, kind: Any, accounts: Sequence[str], most: int | None) -> Sequence[Row]:
    # Ids are made in the order of time, and an index begins with account and id.
    chosen = sa.select(_day(table.created_at), kind.label("kind"), table.account_id.label("source"))
    recent = chosen.where(table.id >= first_id(_begun())).order_by(table.id.desc()).limit(most)
    return _counted([recent.where(table.account_id == one) for one in accounts])


def _day(moment: Any) -> Any:
    if db.connection().dialect.name == "sqlite":
        return sa.func.substr(moment, 1, 10, type_=sa.Text()).label("day")
    return sa.func.to_char(sa.func.timezone("UTC", moment), "YYYY-MM-DD").label("day")


def _counted(chosen: Sequence[Any]) -> Sequence[Row]:
    found: list[Row] = []
    for first in range(0, len(chosen), TOGETHER):
        some = (sa.select(one.subquery()) for one in chosen[first : first + TOGETHER])
        rows = sa.union_all(*some).subquery().c
        by = (rows.day, rows.kind, rows.source)
        counted = sa.select(*by, sa.func.count()).group_by(*by)
        found += [(*row,) for row in db.connection().execute(counted)]
    return found
