"""For superadmins: what workers have to do, what they are doing, and what they gave up."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app import config, db, jobs
from app.accounts.models import Account
from app.console import guard, lists
from app.console.blueprint import blueprint
from app.console.forms import told
from app.console.lists import Listing
from app.jobs import TABLE
from app.rest import public
from app.webhooks.models import DELIVERIES

JOBS = "/console/jobs"
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
        redis_answers=uses_redis and jobs.queue_answers(),
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
    taken = sa.and_(TABLE.c.attempts > 0, untold, TABLE.c.due_at > db.database_now())
    return sa.case(
        (TABLE.c.status != "pending", TABLE.c.status), (taken, "running"), else_="waiting"
    )


def _jobs(listing: Listing) -> tuple[list[Any], int]:
    where = []
    if listing.filters.get("status"):
        where.append(_state() == listing.filters["status"])
    if listing.filters.get("kind"):
        where.append(TABLE.c.kind == listing.filters["kind"])
    counted = sa.select(sa.func.count()).select_from(TABLE).where(*where)
    chosen = sa.select(TABLE, _state().label("state"), Account.name).outerjoin(
        Account, Account.id == TABLE.c.account_id
    )
    page = chosen.where(*where).order_by(TABLE.c.due_at.desc(), TABLE.c.id)
    found = db.connection().execute(page.offset(listing.skip).limit(lists.SIZE)).all()
    return list(found), db.connection().scalar(counted) or 0


def _figures() -> dict[str, int]:
    state, number = _state(), sa.func.count()
    counted = sa.select(state.label("state"), number).group_by("state")
    of_jobs = {row[0]: row[1] for row in db.connection().execute(counted)}
    now, table = db.database_now(), DELIVERIES.c
    begun = table.claim > sa.func.coalesce(table.last_claim, 0)
    due = sa.select(
        number.filter(table.due_at <= now),
        number.filter(table.due_at > now, begun),
        number.filter(table.due_at > now, ~begun),
    ).where(table.due_at.is_not(None))
    waiting, running, retrying = db.connection().execute(due).one()
    return {
        "Jobs waiting": of_jobs.get("waiting", 0),
        "Jobs running": of_jobs.get("running", 0),
        "Jobs failed": of_jobs.get("failed", 0),
        "Deliveries due": waiting,
        "Deliveries with a worker": running,
        "Deliveries to be retried": retrying,
    }
