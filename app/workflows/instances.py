"""Instances for admins: list, inspect, cancel and resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import clock, db, jobs
from app.auth.principal import Principal
from app.collections import masking
from app.context import shown_accounts
from app.db import counts, filters
from app.db.functions import database_now
from app.errors import Conflict, NotFound
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.workflows.engine import queue, step_log
from app.workflows.models import (
    ACTIVE,
    INSTANCES,
    LOGS,
    STATES,
    SUBSCRIPTIONS,
    InstanceState,
    Workflow,
)

MAX_LOGS = 100  # per response of an instance
View = JSONObject
OF_FAILURES = ("account_id", "id", "workflow_id", "completed_at", "holds_pii", "error_message")
LISTED = [one for one in INSTANCES.c if one.name not in ("position", "resumed_at")]


def page(
    filters: JSONMapping,
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
) -> tuple[list[View], int]:
    """Instances, newest first, and the total (counted up to one more than `max_total`).

    `filters` may have kind, workflow_id, status, resumed_at, from_date and to_date.
    """
    conditions = [*_visible(by), *_conditions(filters)]
    total = counts.count_up_to(INSTANCES, conditions, max_total)
    query = sa.select(*LISTED).where(*conditions).order_by(INSTANCES.c.id.desc())
    rows = db.connection().execute(query.offset(skip).limit(limit)).mappings()
    return [_view(row, by) for row in rows], total


def latest(workflow_ids: Sequence[str], *, by: Principal) -> dict[str, sa.Row[*tuple[Any, ...]]]:
    """The newest instance of each of these workflows that has any, without its data."""
    older = INSTANCES.alias()
    of_workflow = (older.c.account_id == Workflow.account_id, older.c.workflow_id == Workflow.id)
    newest = sa.select(sa.func.max(older.c.id)).where(*of_workflow).correlate(Workflow)
    is_newest = sa.and_(
        INSTANCES.c.account_id == Workflow.account_id, INSTANCES.c.id == newest.scalar_subquery()
    )
    columns = [INSTANCES.c[name] for name in ("id", "workflow_id", "status", "created_at")]
    query = sa.select(*columns).select_from(Workflow).join(INSTANCES, is_newest)
    query = query.where(Workflow.id.in_(workflow_ids), *_visible(by))
    return {row.workflow_id: row for row in db.connection().execute(query)}


def failed(limit: int, *, by: Principal) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """The newest failed instances with the name of their workflow, without their data."""
    same_workflow = (
        Workflow.account_id == INSTANCES.c.account_id,
        Workflow.id == INSTANCES.c.workflow_id,
    )
    columns = [INSTANCES.c[name] for name in ("kind", *OF_FAILURES)]
    query = sa.select(*columns, Workflow.name).outerjoin(Workflow, sa.and_(*same_workflow))
    visible = query.where(*_visible(by), INSTANCES.c.status == InstanceState.FAILED)
    return db.connection().execute(visible.order_by(INSTANCES.c.id.desc()).limit(limit)).all()


def failed_in_accounts(accounts: Sequence[str], limit: int) -> Sequence[object]:
    """The newest failed instances of some accounts."""
    columns = [INSTANCES.c[name] for name in OF_FAILURES]
    same_workflow = (
        Workflow.account_id == INSTANCES.c.account_id,
        Workflow.id == INSTANCES.c.workflow_id,
    )
    # Joined within each account: a join of all of them would run on several shards (Citus).
    queries = [
        sa.select(*columns, Workflow.name)
        .outerjoin(Workflow, sa.and_(*same_workflow))
        .where(INSTANCES.c.account_id == account_id, INSTANCES.c.status == InstanceState.FAILED)
        .order_by(INSTANCES.c.id.desc())
        .limit(limit)
        for account_id in accounts
    ]
    if not queries:
        return ()
    rows = sa.union_all(*(sa.select(query.subquery()) for query in queries)).subquery()
    query = sa.select(rows).order_by(rows.c.id.desc()).limit(limit)
    return db.connection().execute(query).all()


def get(instance_id: str, *, by: Principal, skip: int = 0, limit: int | None = None) -> View:
    """One instance with a page of its step log, oldest first. Raises NotFound."""
    row = _get_row(instance_id, by)
    logs, total = _logs(row, skip, MAX_LOGS if limit is None else limit, by)
    return {**_view(row, by), "step_logs": logs, "step_logs_total": total}


def step_logs(instance_id: str, skip: int, limit: int, *, by: Principal) -> tuple[list[View], int]:
    """A page of an instance's step log, oldest first, and the total. Raises NotFound."""
    return _logs(_get_row(instance_id, by), skip, limit, by)


def step_statuses(instance_id: str, *, by: Principal) -> dict[str, tuple[str, int]]:
    """The latest status of each step that has run, by name, and how many times it did."""
    conditions = (*_visible_logs(by), LOGS.c.instance_id == instance_id.lower())
    times = sa.func.count(sa.distinct(LOGS.c.place)).label("times")
    latest = sa.select(sa.func.max(LOGS.c.id).label("id"), times).where(*conditions)
    grouped = latest.group_by(LOGS.c.step_name).subquery()
    columns = (LOGS.c.step_name, LOGS.c.status, grouped.c.times)
    query = sa.select(*columns).join(grouped, grouped.c.id == LOGS.c.id).where(*conditions)
    return {row.step_name: (row.status, row.times) for row in db.connection().execute(query)}


def _visible_logs(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [LOGS.c.account_id == by.account_id]


def _get_row(instance_id: str, by: Principal) -> sa.RowMapping:
    conditions = (*_visible(by), INSTANCES.c.id == instance_id.lower())
    row = db.connection().execute(sa.select(*LISTED).where(*conditions)).mappings().first()
    if row is None:
        raise NotFound("No instance with this id.")
    return row


def _logs(row: sa.RowMapping, skip: int, limit: int, by: Principal) -> tuple[list[View], int]:
    same_instance = (LOGS.c.account_id == row["account_id"], LOGS.c.instance_id == row["id"])
    # Older versions stored values of up to a million characters.
    long_columns = [LOGS.c.input, LOGS.c.output]
    texts = [
        sa.func.substr(column, 1, step_log.LONGEST_STORED).label(column.name)
        for column in long_columns
    ]
    lengths = [sa.func.length(column).label(f"{column.name}_length") for column in long_columns]
    columns = [column for column in LOGS.c if column.name not in ("input", "output")]
    query = sa.select(*columns, *texts, *lengths).where(*same_instance)
    page = query.order_by(LOGS.c.started_at, LOGS.c.id).offset(skip).limit(limit)
    logs = db.connection().execute(page).mappings()
    return [_log_view(column, row, by) for column in logs], counts.count_up_to(
        LOGS, same_instance, None
    )


def cancel(instance_id: str, *, by: Principal) -> View:
    """Cancel an active instance. Raises NotFound, Conflict."""
    by.require_account_id()
    values = {"status": InstanceState.CANCELLED, "due_at": None, "completed_at": database_now()}
    with db.transaction():
        conditions = (*_visible(by), INSTANCES.c.id == instance_id.lower())
        statement = (
            sa.update(INSTANCES).where(*conditions, INSTANCES.c.status.in_(ACTIVE)).values(**values)
        )
        row = db.connection().execute(statement.returning(INSTANCES.c.account_id)).first()
        if row is None:
            get(instance_id, by=by)
            raise Conflict("This instance has already finished.", error="already_over")
        _close(row.account_id, instance_id.lower())
    return get(instance_id, by=by)


def _close(account_id: str, instance_id: str) -> None:
    queue.close_logs(account_id, instance_id, InstanceState.CANCELLED)
    table = SUBSCRIPTIONS.c
    conditions = (table.account_id == account_id, table.instance_id == instance_id)
    db.connection().execute(sa.delete(SUBSCRIPTIONS).where(*conditions))


def resume(instance_id: str, *, by: Principal) -> View:
    """Resume a failed instance at the failed step. Raises NotFound, Conflict."""
    by.require_account_id()
    with db.transaction():
        conditions = (*_visible(by), INSTANCES.c.id == instance_id.lower())
        if not _resume_where(*conditions):
            get(instance_id, by=by)
            raise Conflict("Only failed instances can be resumed.", error="not_failed")
    return get(instance_id, by=by)


def resume_all(filters: JSONMapping, *, by: Principal, resumed_at: datetime | None = None) -> int:
    """Resume all matching failed instances; returns how many.

    `after_resuming` reports their progress by the moment `at`.
    """
    by.require_account_id()
    conditions = (*_visible(by), *_conditions({**filters, "status": InstanceState.FAILED}))
    with db.transaction():
        return _resume_where(*conditions, resumed_at=resumed_at or clock.now())


def resumed_counts(resumed_at: datetime, *, by: Principal) -> dict[str, int]:
    """The number of instances resumed together, by status. Raises NotFound."""
    conditions = (*_visible(by), INSTANCES.c.resumed_at == resumed_at)
    count_query = sa.select(INSTANCES.c.status, sa.func.count()).where(*conditions)
    counts_by_status = {
        row[0]: row[1] for row in db.connection().execute(count_query.group_by("status"))
    }
    if not counts_by_status:
        raise NotFound("No instances were resumed at this time, or they no longer exist.")
    return {state: counts_by_status.get(state, 0) for state in STATES}


def _resume_where(*conditions: Any, **extra: object) -> int:
    # Only the first of concurrent resumes finds the instance failed.
    values = {
        "status": InstanceState.PENDING,
        "due_at": database_now(),
        "error_message": None,
        **extra,
    }
    statement = sa.update(INSTANCES).where(*conditions, INSTANCES.c.status == InstanceState.FAILED)
    resumed = statement.values(**values, completed_at=None).returning(INSTANCES.c.account_id)
    account_ids = db.connection().scalars(resumed).all()
    for account_id in set(account_ids):
        jobs.announce_on_commit(WORKFLOWS, account_id)
    return len(account_ids)


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [INSTANCES.c.account_id == by.account_id]


def _conditions(query: JSONMapping) -> Iterator[object]:
    return filters.log_conditions(INSTANCES, query, ("kind", "status", "workflow_id", "resumed_at"))


def is_hidden(row: sa.RowMapping, by: Principal) -> bool:
    """Whether an instance has personal data that the caller may not see."""
    return bool(row["holds_pii"]) and masking.masks_for(by)


def visible_error(row: sa.RowMapping, by: Principal) -> str | None:
    """The error message of an instance, as far as the caller may see it."""
    return _withheld(row, is_hidden(row, by))


def _view(row: sa.RowMapping, by: Principal) -> View:
    shown_accounts.note(row["account_id"])
    view: View = dict(row)
    view["withheld"], context = is_hidden(row, by), serialization.loads(row["context"])
    view["done"] = list(context.get("steps", ()))  # names are not personal
    view["context"] = {} if view["withheld"] else context
    view["error_message"] = _withheld(row, view["withheld"])
    return view


def _log_view(log: sa.RowMapping, row: sa.RowMapping, by: Principal) -> View:
    shown_accounts.note(row["account_id"])
    view: View = {**log, "workflow_id": row["workflow_id"]}
    hidden = is_hidden(row, by)
    for name in ("input", "output"):
        length = view.pop(f"{name}_length")
        view[name] = None if hidden else step_log.stored_value(log[name], length)
    view["error_message"] = _withheld(log, hidden)
    return view


def _withheld(row: sa.RowMapping, hidden: bool) -> str | None:
    # Error messages may quote the step's input.
    message: str | None = row["error_message"]
    return "Withheld: may have personal data." if hidden and message else message
