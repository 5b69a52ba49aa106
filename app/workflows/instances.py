"""Instances for admins: list, inspect, cancel, resume and run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import clock, db, jobs
from app.accounts.types import Condition
from app.auth.principal import Principal
from app.collections import masking
from app.context import shown_accounts
from app.db import counts, filters
from app.db.functions import database_now
from app.errors import Conflict, NotFound
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONObject
from app.web import serialization
from app.workflows import service
from app.workflows.engine import position, queue, step_log
from app.workflows.models import (
    ACTIVE,
    INSTANCES,
    LOGS,
    STATES,
    SUBSCRIPTIONS,
    InstanceState,
    Workflow,
)

MAX_LOGS = 100
"""Entries of the step log in a response of an instance."""
LONG_VALUES = ("input", "output")
NO_INSTANCE = "No instance with this id."


@dataclass(frozen=True)
class InstanceFilter:
    """Selects the instances that match all values that are set."""

    kind: str | None = None
    workflow_id: str | None = None
    status: str | None = None
    resumed_at: datetime | None = None
    from_date: datetime | None = None
    """Created since then."""
    to_date: datetime | None = None
    """Created before then."""


@dataclass(frozen=True)
class Instance:
    """An instance as the caller may see it."""

    id: str
    account_id: str
    workflow_id: str
    kind: str
    version: int
    trigger_type: str
    status: str
    current_step: str | None
    error_message: str | None
    holds_pii: bool
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    context: JSONObject
    done: Sequence[str]
    """The names of the steps that have ended."""
    withheld: bool
    """Whether it has personal data that the caller may not see."""
    progress: JSONObject | None
    """Within a `for_each`: `{step, done, failed, total}`."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it has ended, and still has trigger data that the caller may see."""
        has_trigger = isinstance(self.context.get("trigger"), dict)  # erasure removes it
        return has_trigger and self.status not in ACTIVE and not self.withheld


@dataclass(frozen=True)
class StepLog:
    """One attempt of a step, as the caller may see it."""

    id: str
    instance_id: str
    workflow_id: str
    account_id: str
    place: str
    step_name: str
    step_type: str
    status: str
    attempt: int
    input: object
    output: object
    error_message: str | None
    started_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True)
class LatestInstance:
    """The newest instance of a workflow without its data."""

    id: str
    workflow_id: str
    status: str
    created_at: datetime


@dataclass(frozen=True)
class FailedInstance:
    """A failed instance without its data, and the name of its workflow."""

    account_id: str
    id: str
    workflow_id: str
    completed_at: datetime | None
    holds_pii: bool
    error_message: str | None
    name: str | None
    """None for a workflow that is deleted."""


@dataclass(frozen=True)
class StepStatus:
    """The latest status of a step, and how many times it has run."""

    status: str
    times: int


@dataclass(frozen=True)
class InstanceWithLogs(Instance):
    """An instance with a page of its step log."""

    step_logs: Sequence[StepLog]
    step_logs_total: int


COMPUTED = ("done", "withheld", "progress")
COLUMNS = [
    INSTANCES.c.position,
    *(INSTANCES.c[field.name] for field in fields(Instance) if field.name not in COMPUTED),
]
FAILURE_COLUMNS = [INSTANCES.c[one.name] for one in fields(FailedInstance) if one.name != "name"]


def page(
    where: InstanceFilter,
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
) -> tuple[list[Instance], int]:
    """Instances, newest first, and the total (counted up to one more than `max_total`)."""
    conditions = _conditions(where, by)
    total = counts.count_up_to(INSTANCES, conditions, max_total)
    query = sa.select(*COLUMNS).where(*conditions).order_by(INSTANCES.c.id.desc())
    rows = db.connection().execute(query.offset(skip).limit(limit))
    items = [_as_seen(row, by) for row in rows]
    for item in items:
        shown_accounts.note(item.account_id)
    return items, total


def latest(workflow_ids: Sequence[str], *, by: Principal) -> dict[str, LatestInstance]:
    """The newest instances of those of these workflows that have any, by workflow."""
    older = INSTANCES.alias()
    of_workflow = (older.c.account_id == Workflow.account_id, older.c.workflow_id == Workflow.id)
    newest = sa.select(sa.func.max(older.c.id)).where(*of_workflow).correlate(Workflow)
    is_newest = sa.and_(
        INSTANCES.c.account_id == Workflow.account_id, INSTANCES.c.id == newest.scalar_subquery()
    )
    columns = [INSTANCES.c[field.name] for field in fields(LatestInstance)]
    query = sa.select(*columns).select_from(Workflow).join(INSTANCES, is_newest)
    query = query.where(Workflow.id.in_(workflow_ids), *_visible(by))
    rows = db.connection().execute(query)
    return {row.workflow_id: LatestInstance(**row._mapping) for row in rows}


def failed(limit: int, *, by: Principal) -> Sequence[FailedInstance]:
    """The newest failed instances with the name of their workflow, without their data."""
    query = _select_failed(_visible(by), limit)
    return [FailedInstance(**row._mapping) for row in db.connection().execute(query)]


def failed_in_accounts(accounts: Sequence[str], limit: int) -> Sequence[FailedInstance]:
    """The newest failed instances of some accounts."""
    # Joined within each account: a join of all of them would run on several shards (Citus).
    found = [
        sa.select(_select_failed([INSTANCES.c.account_id == account_id], limit).subquery())
        for account_id in accounts
    ]
    if not found:
        return ()
    rows = sa.union_all(*found).subquery()
    query = sa.select(rows).order_by(rows.c.id.desc()).limit(limit)
    return [FailedInstance(**row._mapping) for row in db.connection().execute(query)]


def _select_failed(conditions: Sequence[Condition], limit: int) -> sa.Select[Any]:
    workflow = (Workflow.account_id == INSTANCES.c.account_id) & (
        Workflow.id == INSTANCES.c.workflow_id
    )
    return (
        sa.select(*FAILURE_COLUMNS, Workflow.name)
        .outerjoin(Workflow, workflow)
        .where(*conditions, INSTANCES.c.status == InstanceState.FAILED)
        .order_by(INSTANCES.c.id.desc())
        .limit(limit)
    )


def visible_error(instance: FailedInstance, by: Principal) -> str | None:
    """The error message of an instance, as far as the caller may see it."""
    withheld = instance.holds_pii and masking.masks_for(by)
    return _visible_message(instance.error_message, withheld)


def get(
    instance_id: str, *, by: Principal, skip: int = 0, limit: int = MAX_LOGS
) -> InstanceWithLogs:
    """One instance with a page of its step log, oldest first. Raises NotFound."""
    instance = _find(instance_id, by)
    shown_accounts.note(instance.account_id)
    logs, total = _logs(instance, skip, limit)
    return InstanceWithLogs(**vars(instance), step_logs=logs, step_logs_total=total)


def step_logs(
    instance_id: str, skip: int, limit: int, *, by: Principal
) -> tuple[list[StepLog], int]:
    """A page of an instance's step log, oldest first, and the total. Raises NotFound."""
    return _logs(_find(instance_id, by), skip, limit)


def _find(instance_id: str, by: Principal) -> Instance:
    conditions = _has_id(instance_id, by)
    row = db.connection().execute(sa.select(*COLUMNS).where(*conditions)).first()
    if row is None:
        raise NotFound(NO_INSTANCE)
    return _as_seen(row, by)


def _logs(instance: Instance, skip: int, limit: int) -> tuple[list[StepLog], int]:
    conditions = (
        LOGS.c.account_id == instance.account_id,
        LOGS.c.instance_id == instance.id,
    )
    columns = [column for column in LOGS.c if column.name not in LONG_VALUES]
    for name in LONG_VALUES:  # older versions stored up to a million characters
        columns.append(sa.func.substr(LOGS.c[name], 1, step_log.LONGEST_STORED).label(name))
        columns.append(sa.func.length(LOGS.c[name]).label(f"{name}_length"))
    query = sa.select(*columns).where(*conditions).order_by(LOGS.c.started_at, LOGS.c.id)
    logs = []
    for row in db.connection().execute(query.offset(skip).limit(limit)).mappings():
        shown_accounts.note(instance.account_id)
        values = dict(row)
        for name in LONG_VALUES:
            length = values.pop(f"{name}_length")
            values[name] = None if instance.withheld else step_log.stored_value(row[name], length)
        values["error_message"] = _visible_message(row["error_message"], instance.withheld)
        logs.append(StepLog(**values, workflow_id=instance.workflow_id))
    return logs, counts.count_up_to(LOGS, conditions, None)


def step_statuses(instance_id: str, *, by: Principal) -> dict[str, StepStatus]:
    """The latest status of each step that has run, by name."""
    conditions = [LOGS.c.instance_id == instance_id.lower()]
    if by.account_id is not None:
        conditions.append(LOGS.c.account_id == by.account_id)
    times = sa.func.count(sa.distinct(LOGS.c.place)).label("times")
    newest_logs = sa.select(sa.func.max(LOGS.c.id).label("id"), times).where(*conditions)
    by_step = newest_logs.group_by(LOGS.c.step_name).subquery()
    columns = (LOGS.c.step_name, LOGS.c.status, by_step.c.times)
    query = sa.select(*columns).join(by_step, by_step.c.id == LOGS.c.id).where(*conditions)
    rows = db.connection().execute(query)
    return {row.step_name: StepStatus(row.status, row.times) for row in rows}


def cancel(instance_id: str, *, by: Principal) -> InstanceWithLogs:
    """Cancel an active instance. Raises NotFound, Conflict."""
    by.require_account_id()
    values = {"status": InstanceState.CANCELLED, "due_at": None, "completed_at": database_now()}
    with db.transaction():
        conditions = [*_has_id(instance_id, by), INSTANCES.c.status.in_(ACTIVE)]
        statement = sa.update(INSTANCES).where(*conditions).values(**values)
        row = db.connection().execute(statement.returning(INSTANCES.c.account_id)).first()
        if row is None:
            _find(instance_id, by)
            raise Conflict("This instance has already finished.", error="already_over")
        queue.close_logs(row.account_id, instance_id.lower(), InstanceState.CANCELLED)
        subscriptions = (
            SUBSCRIPTIONS.c.account_id == row.account_id,
            SUBSCRIPTIONS.c.instance_id == instance_id.lower(),
        )
        db.connection().execute(sa.delete(SUBSCRIPTIONS).where(*subscriptions))
    return get(instance_id, by=by)


def resume(instance_id: str, *, by: Principal) -> InstanceWithLogs:
    """Resume a failed instance at the failed step. Raises NotFound, Conflict."""
    by.require_account_id()
    with db.transaction():
        if not _resume(_has_id(instance_id, by)):
            _find(instance_id, by)
            raise Conflict("Only failed instances can be resumed.", error="not_failed")
    return get(instance_id, by=by)


def resume_all(where: InstanceFilter, *, by: Principal, resumed_at: datetime | None = None) -> int:
    """Resume all matching failed instances; returns how many.

    `resumed_counts` reports their progress by the moment `resumed_at`.
    """
    by.require_account_id()
    conditions = _conditions(replace(where, status=InstanceState.FAILED), by)
    with db.transaction():
        return _resume(conditions, resumed_at=resumed_at or clock.now())


def _resume(conditions: Sequence[Condition], resumed_at: datetime | None = None) -> int:
    values: dict[str, Any] = {
        "status": InstanceState.PENDING,
        "due_at": database_now(),
        "error_message": None,
        "completed_at": None,
    }
    if resumed_at is not None:
        values["resumed_at"] = resumed_at
    # Only the first of concurrent resumes finds the instance failed.
    statement = sa.update(INSTANCES).where(*conditions, INSTANCES.c.status == InstanceState.FAILED)
    resumed = statement.values(**values).returning(INSTANCES.c.account_id)
    account_ids = db.connection().scalars(resumed).all()
    for account_id in set(account_ids):
        jobs.announce_on_commit(WORKFLOWS, account_id)
    return len(account_ids)


def resumed_counts(resumed_at: datetime, *, by: Principal) -> dict[str, int]:
    """The number of instances resumed together, by status. Raises NotFound."""
    conditions = (*_visible(by), INSTANCES.c.resumed_at == resumed_at)
    query = sa.select(INSTANCES.c.status, sa.func.count()).where(*conditions).group_by("status")
    counts_by_status = {row[0]: row[1] for row in db.connection().execute(query)}
    if not counts_by_status:
        raise NotFound("No instances were resumed at this time, or they no longer exist.")
    return {state: counts_by_status.get(state, 0) for state in STATES}


def rerun(instance_id: str, *, by: Principal) -> str:
    """Start a new instance with the trigger data of one that has ended, and the current steps.

    Returns its id. Raises NotFound, Conflict, LimitReached.
    """
    with db.transaction():
        ended = get(instance_id, by=by, limit=0)
        if not ended.is_repeatable:
            raise Conflict("This instance cannot run again.", error="not_repeatable")
        return service.trigger(
            ended.workflow_id,
            ended.context["trigger"],
            by=by,
            kind=ended.kind,
            holds_pii=ended.holds_pii,  # stays hidden from those who may not see it
        )


def _conditions(where: InstanceFilter, by: Principal) -> list[Condition]:
    columns = ("kind", "status", "workflow_id", "resumed_at")
    return [*_visible(by), *filters.log_conditions(INSTANCES, vars(where), columns)]


def _has_id(instance_id: str, by: Principal) -> list[Condition]:
    return [*_visible(by), INSTANCES.c.id == instance_id.lower()]


def _visible(by: Principal) -> list[Condition]:
    return [] if by.account_id is None else [INSTANCES.c.account_id == by.account_id]


def _as_seen(row: sa.Row[*tuple[Any, ...]], by: Principal) -> Instance:
    withheld = bool(row.holds_pii) and masking.masks_for(by)
    context = serialization.loads(row.context)
    values = {
        **{name: value for name, value in row._mapping.items() if name != "position"},
        "progress": position.progress(serialization.loads(row.position)),
        "context": {} if withheld else context,
        "error_message": _visible_message(row.error_message, withheld),
        "done": list(context.get("steps", ())),  # names of steps are not personal
    }
    return Instance(**values, withheld=withheld)


def _visible_message(message: str | None, is_withheld: bool) -> str | None:
    # Error messages may quote the step's input.
    return "Withheld: may have personal data." if is_withheld and message else message
