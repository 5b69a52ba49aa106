"""For superadmins: what workers have to do, what they are doing, and what they gave up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app import config, db, jobs
from app.accounts.models import Account
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import told
from app.console.shell.lists import Listing
from app.db import counts
from app.db.functions import database_now
from app.jobs import TABLE
from app.rest.access import public
from app.webhooks.models import DELIVERIES

JOBS = "/console/jobs"
PENDING, FAILED, DONE = STORED = ("pending", "failed", "done")
STATES = ("waiting", "running", "failed", "done")


@blueprint.get(JOBS)
@public
@guard.for_superadmins
def show_jobs() -> str:
    """The jobs, the queues, and whether Redis answers."""
    listing = lists.asked_for("console.show_jobs", {"status": STATES, "kind": jobs.kinds()})
    listing.holding(_jobs(listing))
    uses_redis = bool(config.current().redis_url)
    return render_template(
        "console/jobs/list.html",
        listing=listing,
        figures=_figures(),
        uses_redis=uses_redis,
        redis_answers=uses_redis and jobs.is_redis_up(),
    )


@blueprint.post(f"{JOBS}/<uuid:account_id>/<uuid:job_id>/retry")
@public
@guard.for_superadmins
def retry_job(account_id: str, job_id: str) -> BaseResponse:
    """Ask again for a job that was given up."""
    jobs.retry(account_id.lower(), job_id.lower())
    return told("The job is asked for again.", "console.show_jobs")


def _state() -> Any:
    untold = sa.and_(TABLE.c.last_error.is_(None), TABLE.c.finished_at.is_(None))
    taken = sa.and_(TABLE.c.attempts > 0, untold, TABLE.c.due_at > database_now())
    return sa.case(
        (TABLE.c.status != "pending", TABLE.c.status), (taken, "running"), else_="waiting"
    )


def _jobs(listing: Listing) -> tuple[list[Any], int]:
    status, kind = listing.filters.get("status"), listing.filters.get("kind")
    stored = [status] if status in (FAILED, DONE) else [PENDING] if status else STORED
    where = [_state() == status] if status and stored == [PENDING] else []
    where += [TABLE.c.kind == kind] if kind else []
    if not where:
        return _page(_newest(stored, listing.skip + lists.SIZE), listing), _number(stored, listing)
    listing.from_newest(lambda newer: _place(stored, newer))
    found = _newest(stored, listing.looked_at).where(*where)
    return _page(found, listing), counts.count_up_to(found.subquery(), (), listing.most)


def _newest(stored: Sequence[str], most: int | None) -> sa.Select[Any]:
    """Of each status the jobs that its index finds first."""
    keys = (TABLE.c.account_id, TABLE.c.id)
    each = (
        sa.select(*keys).where(TABLE.c.status == one).order_by(TABLE.c.due_at.desc()).limit(most)
        for one in stored
    )
    some = sa.union_all(*(sa.select(one.subquery()) for one in each)).subquery()
    its = sa.and_(TABLE.c.account_id == some.c.account_id, TABLE.c.id == some.c.id)
    chosen = sa.select(TABLE, _state().label("state"), Account.name).join_from(some, TABLE, its)
    return chosen.outerjoin(Account, Account.id == TABLE.c.account_id)


def _page(found: sa.Select[Any], listing: Listing) -> list[Any]:
    page = found.order_by(TABLE.c.due_at.desc(), TABLE.c.id)
    return list(db.connection().execute(page.offset(listing.skip).limit(lists.SIZE)))


def _number(stored: Sequence[str], listing: Listing) -> int:
    return sum(counts.count_up_to(TABLE, [TABLE.c.status == one], listing.most) for one in stored)


def _place(stored: Sequence[str], newer: int) -> Any:
    places = (
        counts.value_at_offset(TABLE.c.due_at, [TABLE.c.status == one], newer) for one in stored
    )
    return next((place for place in places if place is not None), None)


def _figures() -> dict[str, str]:
    pending = sa.select(_state().label("state")).where(TABLE.c.status == PENDING)
    some = pending.limit(lists.MOST_COUNTED + 1).subquery()
    counted = sa.select(some.c.state, sa.func.count()).group_by(some.c.state)
    of_jobs = {row[0]: row[1] for row in db.connection().execute(counted)}
    now, table = database_now(), DELIVERIES.c
    due, begun = table.due_at <= now, table.claim > sa.func.coalesce(table.last_claim, 0)
    found = {
        "Jobs waiting": of_jobs.get("waiting", 0),
        "Jobs running": of_jobs.get("running", 0),
        "Jobs failed": _bounded(TABLE, TABLE.c.status == FAILED),
        "Deliveries due": _bounded(DELIVERIES, due),
        "Deliveries with a worker": _bounded(DELIVERIES, table.due_at > now, begun),
        "Deliveries to be retried": _bounded(DELIVERIES, table.due_at > now, ~begun),
    }
    return {name: lists.told(number) for name, number in found.items()}


def _bounded(table: Any, *where: Any) -> int:
    return counts.count_up_to(table, where, lists.MOST_COUNTED)
