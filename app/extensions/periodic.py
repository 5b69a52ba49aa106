"""Periodic handlers: each due time runs them once, whichever worker sees it.

A row among the jobs has the next due time of each handler. Whoever claims it enqueues the jobs that
call the handler: one, or one for each active account, so that none waits for another or fails with
it. Due times that are missed in an outage are made up for by one run.
"""

from __future__ import annotations

import math
from functools import partial

import sqlalchemy as sa

from app import db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.db.functions import database_now
from app.errors import NotFound
from app.extensions import registry
from app.extensions.jobs import kind_of, new
from app.extensions.registry import Handler, Kind
from app.jobs import JobState, worker
from app.types import JSONMapping
from app.workflows.language import cron
from app.workflows.triggers.schedules import database_time

PIECE = 500
"""Accounts whose jobs one transaction enqueues."""
SUFFIX = ".schedule"


@registry.on_change
def register() -> None:
    """Have workers look after the due times of the loaded handlers."""
    for text, found in registry.of(Kind.PERIODIC).items():
        for handler in found:
            kind = f"{kind_of(handler)}{SUFFIX}"
            jobs.periodic(partial(_seconds_to_next, text), kind)(partial(_fire, handler))


def _seconds_to_next(text: str) -> int:
    now = database_time()
    return math.ceil((cron.following(text, now) - now).total_seconds())


def make_due(name: str) -> None:
    """Let workers run a handler at once, and then at its next time. Raises NotFound."""
    handler = registry.find(Kind.PERIODIC, name)
    if handler is None:
        raise NotFound(f"No loaded extension has a periodic handler {name}.")
    worker.schedule_periodic()
    table, kind = jobs.TABLE.c, f"{kind_of(handler)}{SUFFIX}"
    row = (table.account_id == jobs.INSTANCE, table.kind == kind)
    waiting = sa.update(jobs.TABLE).where(*row, table.status == JobState.PENDING)
    with db.transaction() as session:
        due = waiting.values(due_at=database_now()).returning(table.id)
        for id in session.scalars(due):
            jobs.announce_on_commit(jobs.queue_of(kind), jobs.INSTANCE, id)


def _fire(handler: Handler, payload: JSONMapping) -> None:
    """Enqueue the jobs of a due time, in pieces; a worker that goes on begins with the next one."""
    last, is_over = payload.get("last", ""), payload.get("is_over", False)
    while not is_over:
        with db.transaction():
            accounts = _accounts(last) if handler.options["accounts"] else [jobs.INSTANCE]
            is_over = len(accounts) < PIECE
            last = accounts[-1] if accounts else last
            jobs.change_running({"payload": {"last": last, "is_over": is_over}})
            busy = _busy(kind_of(handler))
            jobs.enqueue_many(
                [new(handler, (), account_id=id, by={}) for id in accounts if id not in busy]
            )


def _accounts(last: str) -> list[str]:
    """The next active accounts after an id, without that of the operators."""
    active = sa.select(Account.id).where(Account.is_active, Account.id != SYSTEM_ACCOUNT_ID)
    query = active.where(Account.id > last).order_by(Account.id).limit(PIECE)
    return list(db.db.session.scalars(query))


def _busy(kind: str) -> set[str]:
    """The accounts whose last run has not ended: another one would do the same work."""
    waiting = (jobs.TABLE.c.kind == kind, jobs.TABLE.c.status == JobState.PENDING)
    return set(db.connection().scalars(sa.select(jobs.TABLE.c.account_id).where(*waiting)))
