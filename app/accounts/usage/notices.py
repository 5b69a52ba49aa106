"""Mails about quotas: an account hears of 80 and of 100 % of a limit, once each per period."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from app import config, db, events, jobs
from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.plans import stored as plans
from app.accounts.product import mails
from app.accounts.usage import levels, quotas, request_counter
from app.accounts.usage.models import FLOWS, NOTICES
from app.context import tenancy
from app.types import JSONMapping, JSONObject

PERCENTS = (80, 100)
NOTIFY = "usage.notify_admin"


class Notice(NamedTuple):
    """A limit that an account has nearly or wholly used up."""

    account_id: str
    meter: str
    period: str
    percent: int
    limit: int
    used: int
    is_soft: bool


@jobs.periodic(60, "usage.check_quotas")
def check_quotas(payload: JSONMapping) -> None:
    """Mail admins whose account has used 80 or 100 % of a limit, once each per period."""
    request_counter.flush(request_counter.current())
    own = Account.settings[quotas.SETTING].as_string().is_not(None)
    has_one = sa.true() if config.current().quotas else sa.or_(own, Account.plan.is_not(None))
    columns = (Account.id, Account.settings, Account.plan)
    query = sa.select(*columns).where(Account.is_active, has_one)
    rows = db.connection().execute(query.where(Account.id != SYSTEM_ACCOUNT_ID)).all()
    used = levels.all_current(None) if rows else {}
    known = plans.load()
    today = levels.current_day()
    for row in rows:
        plan = plans.of_account(row.plan, known)
        for meter, soft, hard in quotas.of_account(row.id, row.settings, plan):
            limit = soft if soft is not None else hard
            n = used.get((row.id, meter), 0)
            if limit is None:
                continue
            reached = [percent for percent in PERCENTS if n * 100 >= limit * percent]
            if reached:
                period = today if meter in FLOWS else today[: len("2026-11")]
                _send_once(Notice(row.id, meter, period, max(reached), limit, n, soft is not None))


def _send_once(notice: Notice) -> None:
    """Enqueue the mails of a notice, unless it was sent in this period."""
    key = notice._asdict()
    limit, used, is_soft = key.pop("limit"), key.pop("used"), key.pop("is_soft")
    new = levels.insert(NOTICES).values(**key).on_conflict_do_nothing()
    with tenancy.in_account(notice.account_id), db.transaction() as session:
        if not session.execute(new.returning(NOTICES.c.percent)).all():
            return
        if is_soft and notice.percent == max(PERCENTS):
            about = {"account_id": notice.account_id, "quota": notice.meter}
            events.publish(events.Happened(notice.account_id, "quota.reached", about))
        for user_id in users.verified_admins(notice.account_id):
            details = {"meter": notice.meter, "percent": notice.percent}
            payload = {"user_id": user_id, "limit": limit, "used": used, **details}
            jobs.enqueue(NOTIFY, payload, account_id=notice.account_id)


@jobs.job(NOTIFY, mails=True)
def notify_admin(payload: JSONMapping) -> None:
    """Mail an admin about a limit of the account."""
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is not None and user.may_sign_in:
        values: JSONObject = {n: payload[n] for n in ("meter", "percent", "limit", "used")}
        values["account"] = user.account.name
        values["link"] = f"{config.current().base_url}/console/usage"
        mails.send("quota_notice", user.email, user.account_id, user=user, **values)
