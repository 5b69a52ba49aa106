"""Schedules: each due time fires once across all processes, and once after an outage.

A workflow's row has its next due time. Whoever advances it has fired it, in the same
transaction; due times missed in between are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
import structlog

from app import clock, db, jobs
from app.auth import principal as principals
from app.db.errors import UNAVAILABLE
from app.db.functions import database_now
from app.db.types import UtcDateTime
from app.errors import InvalidValues, problem
from app.jobs import leases
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONObject
from app.workflows.language import cron
from app.workflows.models import SCHEDULES, Trigger, Workflow
from app.workflows.triggers import start, start_limits

log = structlog.get_logger()

LARGEST_LOOK = 100
NEVER = datetime(9999, 12, 31, tzinfo=UTC)  # for disabled schedules
RETRY_AFTER = timedelta(hours=1)  # after an error, so that the row does not block others
UNREADABLE = "The schedule {!r} is no longer supported. Save the workflow with another one. {}"


def database_time() -> datetime:
    """The current time by the database's clock."""
    now: datetime = db.connection().execute(sa.select(database_now())).scalar_one()
    return now


def plan(workflow: Workflow) -> None:
    """Set the next due time of a workflow, in the open transaction.

    An unchanged schedule keeps it, or a due time about to fire would be lost. Raises InvalidValues
    for a stored schedule that an earlier version accepted.
    """
    is_due = workflow.enabled and workflow.trigger_type == Trigger.SCHEDULE
    text = cron.expanded(workflow.trigger["cron"]) if is_due else ""
    zone = workflow.trigger.get("timezone") if is_due else None
    planned = times(workflow.account_id, [workflow.id]).get(workflow.id)
    if planned and (planned.cron, planned.timezone) == (text, zone):
        return
    key = {"account_id": workflow.account_id, "workflow_id": workflow.id}
    following = NEVER
    if text:
        if wrong := cron.problem(text):
            raise InvalidValues([problem("trigger.cron", "cron_invalid", wrong)])
        following = cron.following(text, database_time(), zone)
    values = {"cron": text, "timezone": zone, "next_at": following}
    _announce(workflow.account_id, following)
    if planned:  # keep the row, which has the last due time
        conditions = [SCHEDULES.c[name] == value for name, value in key.items()]
        db.connection().execute(sa.update(SCHEDULES).where(*conditions).values(**values))
    elif text:
        db.connection().execute(sa.insert(SCHEDULES).values(**key, **values))


def forget(account_id: str, workflow_id: str | None = None) -> None:
    """Remove the schedule of a workflow, or all of an account."""
    conditions = [SCHEDULES.c.account_id == account_id]
    if workflow_id:
        conditions.append(SCHEDULES.c.workflow_id == workflow_id)
    db.connection().execute(sa.delete(SCHEDULES).where(*conditions))


def times(account_id: str, workflow_ids: list[str]) -> JSONObject:
    """The schedules of workflows, by id."""
    conditions = (SCHEDULES.c.account_id == account_id, SCHEDULES.c.workflow_id.in_(workflow_ids))
    due = sa.func.nullif(SCHEDULES.c.next_at, sa.literal(NEVER, UtcDateTime()), type_=UtcDateTime())
    columns = (
        *(column for column in SCHEDULES.c if column.name != "next_at"),
        due.label("next_at"),
    )
    rows = db.connection().execute(sa.select(*columns).where(*conditions))
    return {row.workflow_id: row for row in rows}


def accounts_due() -> list[tuple[str]]:
    """The accounts with due schedules."""
    is_due = SCHEDULES.c.next_at <= database_now()
    accounts = sa.select(SCHEDULES.c.account_id).where(is_due).distinct()
    return [(account_id,) for account_id in db.connection().scalars(accounts)]


def seconds_to_next() -> float:
    """The seconds until the next schedule is due, by the database's clock."""
    return leases.seconds_until(SCHEDULES.c.next_at)


def fire(now: datetime | None = None, accounts: Sequence[str] | None = None) -> int:
    """Start what is due of these or all accounts; returns how many this process started."""
    now_or_database = now or database_now()
    columns = (*SCHEDULES.c, sa.type_coerce(database_now(), UtcDateTime()).label("now"))
    theirs = SCHEDULES.c.account_id.in_(accounts) if accounts is not None else sa.true()
    query = sa.select(*columns).where(SCHEDULES.c.next_at <= now_or_database, theirs)
    ordered = query.order_by(SCHEDULES.c.next_at).limit(LARGEST_LOOK)
    due = db.connection().execute(ordered).all()
    return sum(_try_fire(row, now or row.now) for row in due)


def _try_fire(row: Any, now: datetime) -> bool:
    try:
        following = _next(row, now)
        with db.transaction() as session:
            if not _advance(row, next_at=following, last_at=row.next_at):
                return False
            _announce(row.account_id, following)
            workflow = session.get(Workflow, (row.account_id, row.workflow_id))
            if workflow is not None and principals.reload_active_account(row.account_id):
                trigger = {"scheduled_for": clock.iso(row.next_at), "cron": row.cron}
                trigger |= {"timezone": row.timezone} if row.timezone else {}
                new = start.row(workflow, trigger, Trigger.SCHEDULE)
                if new and following == NEVER:
                    wrong = cron.problem(row.cron) or cron.timezone_problem(row.timezone)
                    reason = UNREADABLE.format(row.cron, wrong or "")
                    new = dict(start_limits.refused(new, reason))
                start.write([new] if new else [])
        return True
    except UNAVAILABLE:
        raise
    except Exception as error:  # noqa: BLE001 - one failing schedule must not stop the others
        log.error("schedule broke", workflow=row.workflow_id, error=type(error).__name__)
        with db.transaction():
            _advance(row, next_at=now + RETRY_AFTER)
        return False


def _announce(account_id: str, at: datetime) -> None:
    if at != NEVER:
        seconds = (at - clock.now()).total_seconds()
        jobs.announce_on_commit(WORKFLOWS, account_id, seconds=seconds)


def _next(row: Any, now: datetime) -> datetime:
    try:
        return cron.following(row.cron, now, row.timezone)
    except ValueError:  # an earlier version accepted it
        log.error("schedule unreadable", workflow=row.workflow_id, cron=row.cron)
        return NEVER


def _advance(row: Any, **values: datetime) -> bool:
    unchanged = (
        SCHEDULES.c.account_id == row.account_id,
        SCHEDULES.c.workflow_id == row.workflow_id,
        SCHEDULES.c.next_at == row.next_at,
    )
    return (
        db.connection().execute(sa.update(SCHEDULES).where(*unchanged).values(**values)).rowcount
        == 1
    )
