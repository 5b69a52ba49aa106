"""The usage of an account, day by day, and changes of its quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import sqlalchemy as sa

from app import clock, db
from app.accounts import tenants
from app.accounts.models import Account
from app.accounts.plans import stored as plans
from app.accounts.plans.stored import Limits
from app.accounts.usage import levels, quotas, request_counter
from app.accounts.usage.models import COUNTS, FLOWS, METERS, STOCKS
from app.errors import InvalidValues, problem
from app.types import JSONObject

DEFAULT_DAYS, MAX_DAYS = 30, 366
LEVEL = "level"
"""The slot of a stock's level on a day."""


@dataclass(frozen=True)
class MeterState:
    """The present usage of a meter by an account, and its limits."""

    used: int
    soft: int | None
    hard: int | None
    is_own: bool
    """Whether the limits are the account's own, not those of its plan or of the service."""
    plan: str | None = None
    """The account's plan, if the limits are its."""


@dataclass(frozen=True)
class Usage:
    """The usage of an account on each day of a range, and its present one."""

    from_date: date
    to_date: date
    items: Sequence[Mapping[str, object]]
    meters: Mapping[str, MeterState]


def usage(account_id: str, from_date: date | None, to_date: date | None) -> Usage:
    """Return an account's usage on these days, by default the last 30. Raises InvalidValues."""
    account = tenants.get(account_id)
    last = to_date or clock.now().date()
    first = from_date or last - timedelta(days=DEFAULT_DAYS - 1)
    if first > last:
        message = "from_date is after to_date."
        raise InvalidValues([problem("from_date", "invalid_range", message)])
    if (last - first).days >= MAX_DAYS:
        message = f"A range has at most {MAX_DAYS} days."
        raise InvalidValues([problem("from_date", "invalid_range", message)])
    request_counter.collect_all()
    columns = (COUNTS.c.day, COUNTS.c.meter)
    query = sa.select(*columns, sa.func.sum(COUNTS.c.amount)).where(
        COUNTS.c.account_id == account_id,
        COUNTS.c.day.between(first.isoformat(), last.isoformat()),
    )
    by_day: dict[str, dict[str, int]] = {}
    for day_text, meter, amount in db.connection().execute(query.group_by(*columns)):
        by_day.setdefault(day_text, {})[meter] = int(amount)
    now = levels.all_current(account_id)
    today = clock.now().date()
    items = list[JSONObject]()
    for n in range((min(last, today) - first).days + 1):
        day = first + timedelta(days=n)
        counted = by_day.get(day.isoformat(), {})
        flows = {meter: counted.get(meter, 0) for meter in FLOWS}
        of_day = {meter: counted.get(meter) for meter in STOCKS}
        current = {meter: now.get((account_id, meter), 0) for meter in STOCKS}
        items.append({"day": day, **flows, **(current if day == today else of_day)})
    return Usage(first, last, items, _meters(account, now))


def _meters(account: Account, now: Mapping[tuple[str, str], int]) -> dict[str, MeterState]:
    plan, own = plans.of_account(account.plan), account.settings.get(quotas.SETTING, {})
    limits = {
        quota.meter: (quota.soft, quota.hard)
        for quota in quotas.of_account(account.id, account.settings, plan)
    }
    return {
        meter: MeterState(
            now.get((account.id, meter), 0),
            *limits.get(meter, (None, None)),
            bool(own.get(meter)),
            account.plan if not own.get(meter) and plan.quotas.get(meter) else None,
        )
        for meter in METERS
    }


def meters(account_id: str) -> dict[str, MeterState]:
    """Return what an account uses now, with the limits, by meter."""
    account = tenants.get(account_id)
    request_counter.collect_all()
    return _meters(account, levels.all_current(account_id))


def change_quotas(account_id: str, changes: Mapping[str, Limits | None]) -> dict[str, MeterState]:
    """Set limits of these meters, or remove them (None). Raises InvalidValues and Conflict."""
    if problems := quotas.wrong_limits(changes):
        raise InvalidValues(problems)
    tenants.change(account_id, {"overrides": {"quotas": changes}})
    return meters(account_id.lower())
