"""Quotas: limits of what an account uses, set by superadmins.

An account's own limit of a meter comes before that of its plan, and this before the instance's. Its
quotas travel with the cached caller: a check of an account without one costs nothing, and a change
takes effect with the next request of every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import prometheus_client
import sqlalchemy as sa

from app import clock, config, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.plans import stored as plans
from app.accounts.plans.stored import Limits, Plan
from app.accounts.usage import levels, request_counter
from app.accounts.usage.models import METERS, REQUESTS, STOCKS
from app.context import metrics
from app.errors import AppError, problem
from app.types import JSONMapping, JSONObject

SETTING = NOTED_KEY = "quotas"
STOCK_RETRY_SECONDS = 3600
ANONYMOUS_PERCENT = 80  # of the quota of requests; the rest is for callers with a credential
EXCEEDED = prometheus_client.Counter(
    "atrium_quota_exceeded_total", "Refusals for a quota of an account.", ("quota",), registry=None
)


class Quota(NamedTuple):
    """The limits of one meter: a hard one refuses, a soft one only sends mails."""

    meter: str
    soft: int | None
    hard: int | None


Quotas = tuple[Quota, ...]


class QuotaExceeded(AppError):
    """An account that has used up a quota."""

    status = 429
    error = "quota_exceeded"

    def __init__(self, quota: str, limit: int, seconds: int) -> None:
        message = f"This account has used up its quota of {quota}: {limit:,}."
        super().__init__(message, headers={"Retry-After": str(seconds)}, quota=quota, limit=limit)
        metrics.count(EXCEEDED, quota)


def of_account(account_id: str, settings: JSONMapping, plan: Plan) -> Quotas:
    """Return the quotas of an account: its own, else its plan's, else the instance's."""
    if account_id == SYSTEM_ACCOUNT_ID:
        return ()  # superadmins must get in
    own: Mapping[str, JSONMapping] = settings.get(SETTING, {})
    defaults = dict(config.current().quotas)
    quotas = []
    for meter in METERS:
        limits = own.get(meter) or plan.quotas.get(meter) or {"hard": defaults.get(meter)}
        soft, hard = limits.get("soft"), limits.get("hard")
        if soft is not None or hard is not None:
            quotas.append(Quota(meter, soft, hard))
    return tuple(quotas)


def wrong_limits(changes: Mapping[str, Limits | None], place: str = "") -> list[JSONObject]:
    """Return the problems of limits by meter: a soft one higher than the hard one."""
    message = "The soft limit is higher than the hard one."
    return [
        problem(".".join(filter(None, (place, meter))), "invalid_quota", message)
        for meter, limits in changes.items()
        for soft, hard in [((limits or {}).get("soft"), (limits or {}).get("hard"))]
        if soft is not None and hard is not None and soft > hard
    ]


def merged(settings: JSONMapping, changes: Mapping[str, Limits | None]) -> JSONObject:
    """Return an account's settings with other limits of its own; None removes those of a meter."""
    own = {**settings.get(SETTING, {}), **changes}
    return {**settings, SETTING: {meter: limits for meter, limits in own.items() if limits}}


def hard_limit(quotas: Quotas, meter: str) -> int | None:
    """Return the hard limit of a meter; None if there is none."""
    return next((quota.hard for quota in quotas if quota.meter == meter), None)


def check_requests(account_id: str, quotas: Quotas, *, signed_in: bool) -> None:
    """Raise QuotaExceeded if the account may send no more requests today.

    Anonymous callers are refused earlier: they may name any account, and must not lock out its own
    callers. Requests of other processes count as of a second ago (docs/usage.md).
    """
    limit = hard_limit(quotas, REQUESTS)
    if limit is not None and not signed_in:
        limit = limit * ANONYMOUS_PERCENT // 100
    if limit is not None and request_counter.current().count_of_today(account_id) >= limit:
        raise exceeded(account_id, REQUESTS, limit)


def check(account_id: str, quotas: Quotas, meter: str, adding: int = 1) -> None:
    """Raise QuotaExceeded if `adding` would pass the hard limit of a meter."""
    limit = hard_limit(quotas, meter)
    if limit is not None and levels.current(account_id, meter) + adding > limit:
        raise exceeded(account_id, meter, limit)


def check_stored(account_id: str, meter: str, adding: int = 1) -> None:
    """The same with the account's stored quotas, for what happens seldom."""
    check(account_id, load(account_id), meter, adding)


def exceeded(account_id: str, meter: str, limit: int) -> QuotaExceeded:
    """Return the refusal of a meter's hard limit, and note it for its event."""
    request_counter.current().note_refusal(account_id, meter)
    seconds = STOCK_RETRY_SECONDS if meter in STOCKS else seconds_until_midnight()
    return QuotaExceeded(meter, limit, seconds)


def load(account_id: str) -> Quotas:
    """Return the quotas of an account: those that the open transaction has noted, else stored."""
    noted = db.notes().get(NOTED_KEY, {}).get(account_id) if db.in_transaction() else None
    if noted is not None:
        own: Quotas = noted
        return own
    query = sa.select(Account.settings, Account.plan).where(Account.id == account_id)
    row = db.connection().execute(query).first()
    return of_account(account_id, row.settings, plans.of_account(row.plan)) if row else ()


def is_used_up(account_id: str, meter: str, adding: int = 1) -> bool:
    """Whether `adding` would pass the hard limit of a meter."""
    limit = hard_limit(load(account_id), meter)
    if limit is None or levels.current(account_id, meter) + adding <= limit:
        return False
    request_counter.current().note_refusal(account_id, meter)
    return True


def seconds_until_midnight() -> int:
    """Return the seconds until the next day in UTC begins."""
    return max(1, math.ceil(clock.seconds_until_midnight()))
