"""Jobs: daily levels of stocks, mails about quotas, and what is no longer needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db, events, jobs
from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User
from app.accounts.usage import levels, quotas, request_counter
from app.accounts.usage.meters import FLOWS, MAILS, STOCKS
from app.accounts.usage.models import COUNTS, NOTICES
from app.accounts.usage.service import LEVEL
from app.context import tenancy
from app.db import engine
from app.outbound import mail
from app.types import JSONMapping

log = structlog.get_logger()
PERCENTS = (80, 100)
FOLDED = "folded"
FOLDED_AFTER = timedelta(days=35)  # later than any journal is collected
PURGE, NOTIFY = "usage.remove_account", "usage.notify_admin"
BATCH = 500


@events.subscribe(events.MailSent)
def _count_mail(event: events.MailSent) -> None:
    """Count a mail for the account that it was sent for."""
    own = {"account_id": event.account_id, "meter": MAILS, "day": levels.current_day(), "slot": "0"}
    new = _insert()(COUNTS).values(**own, amount=1)
    counted = new.on_conflict_do_update(
        index_elements=[*COUNTS.primary_key], set_={"amount": COUNTS.c.amount + 1}
    )
    try:
        with tenancy.in_account(event.account_id), db.transaction() as session:
            session.execute(counted)
    except SQLAlchemyError as error:  # or the mail would be sent again
        log.warning("a mail is not metered", reason=type(error).__name__)


def _insert() -> type[postgresql.Insert] | type[sqlite.Insert]:
    is_sqlite = engine.current_engine().dialect.name == "sqlite"
    return sqlite.Insert if is_sqlite else postgresql.Insert


@jobs.periodic(600, "usage.record_levels")
def record_levels(payload: JSONMapping) -> None:
    """Store the levels of stocks as today's, in place of an earlier look."""
    rows = [
        {
            "account_id": account_id,
            "meter": meter,
            "day": levels.current_day(),
            "slot": LEVEL,
            "amount": n,
        }
        for (account_id, meter), n in levels.all_current(None).items()
        if meter in STOCKS
    ]
    for first in range(0, len(rows), BATCH):
        new = _insert()(COUNTS).values(rows[first : first + BATCH])
        stored = new.on_conflict_do_update(
            index_elements=[*COUNTS.primary_key], set_={"amount": new.excluded.amount}
        )
        with db.transaction() as session:
            session.execute(stored)


class Notice(NamedTuple):
    """A limit that an account has nearly or wholly used up."""

    account_id: str
    meter: str
    period: str
    percent: int
    limit: int
    used: int


@jobs.periodic(60, "usage.check_quotas")
def check_quotas(payload: JSONMapping) -> None:
    """Mail admins whose account has used 80 or 100 % of a limit, once each per period."""
    request_counter.flush(request_counter.current())
    own = Account.settings[quotas.SETTING].as_string().is_not(None)
    limited = sa.true() if config.current().quotas else own
    query = sa.select(Account.id, Account.settings).where(Account.is_active, limited)
    rows = db.connection().execute(query.where(Account.id != SYSTEM_ACCOUNT_ID)).all()
    if rows:
        limits = {row.id: quotas.of_account(row.id, row.settings) for row in rows}
        for notice in _notices(limits, levels.all_current(None)):
            _send_once(notice)


def _notices(
    limits: Mapping[str, quotas.Quotas], used: Mapping[tuple[str, str], int]
) -> Iterable[Notice]:
    today = levels.current_day()
    for account_id, own in limits.items():
        for meter, soft, hard in own:
            limit = soft if soft is not None else hard
            n = used.get((account_id, meter), 0)
            if limit is None:
                continue
            reached = [percent for percent in PERCENTS if n * 100 >= limit * percent]
            if reached:
                period = today if meter in FLOWS else today[: len("2026-11")]
                yield Notice(account_id, meter, period, max(reached), limit, n)


def _send_once(notice: Notice) -> None:
    """Enqueue the mails of a notice, unless it was sent in this period."""
    key = notice._asdict()
    limit, used = key.pop("limit"), key.pop("used")
    new = _insert()(NOTICES).values(**key).on_conflict_do_nothing()
    with tenancy.in_account(notice.account_id), db.transaction() as session:
        if not session.execute(new.returning(NOTICES.c.percent)).all():
            return
        for user_id in users.verified_admins(notice.account_id):
            details = {"meter": notice.meter, "percent": notice.percent}
            payload = {"user_id": user_id, "limit": limit, "used": used, **details}
            jobs.enqueue(NOTIFY, payload, account_id=notice.account_id)


@jobs.job(NOTIFY, mails=True)
def notify_admin(payload: JSONMapping) -> None:
    """Mail an admin about a limit of the account."""
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is not None and user.may_sign_in:
        details = {name: payload[name] for name in ("meter", "percent", "limit", "used")}
        url = f"{config.current().base_url}/console/usage"
        values = {"account": user.account.name, "url": url}
        mail.send(user.email, "quota_notice", language=user.language, **details, **values)


@jobs.periodic(24 * 3600, "usage.fold")
def fold(payload: JSONMapping) -> None:
    """Add up the parts of past days, and forget notices of past months."""
    until = (clock.now() - FOLDED_AFTER).date().isoformat()
    old = (COUNTS.c.day < until, COUNTS.c.slot != FOLDED)
    key = (COUNTS.c.account_id, COUNTS.c.meter, COUNTS.c.day)
    query = sa.select(*key, sa.literal(FOLDED), sa.func.sum(COUNTS.c.amount)).where(*old)
    new = _insert()(COUNTS).from_select([*COUNTS.c.keys()], query.group_by(*key))
    folded = new.on_conflict_do_update(
        index_elements=[*COUNTS.primary_key],
        set_={"amount": COUNTS.c.amount + new.excluded.amount},
    )
    with db.transaction() as session:
        session.execute(folded)
        session.execute(sa.delete(COUNTS).where(*old))
        session.execute(sa.delete(NOTICES).where(NOTICES.c.period < until[: len("2026-11")]))


@events.subscribe(events.AccountClosed)
def _remove_of_account(event: events.AccountClosed) -> None:
    # Once more when all is over that was under way as the account was closed.
    for delay in (0, jobs.IN_FLIGHT_SECONDS):
        jobs.enqueue(PURGE, {}, account_id=event.account_id, after=delay)


@jobs.job(PURGE)
def remove_account(payload: JSONMapping) -> None:
    """Delete the counts of a closed account."""
    for table in (COUNTS, NOTICES):
        with db.transaction() as session:
            session.execute(sa.delete(table).where(table.c.account_id == payload["account_id"]))
