"""Instances for admins: list, inspect, cancel and resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import clock, db, jobs
from app.auth.principal import Principal
from app.collections import masking
from app.db import counts
from app.db.functions import database_now
from app.errors import Conflict, NotFound
from app.ids import first_id
from app.types import JSONMapping, JSONObject
from app.workflows import serialization
from app.workflows.engine import queue, step_log
from app.workflows.models import (
    ACTIVE,
    CANCELLED,
    FAILED,
    INSTANCES,
    LOGS,
    PENDING,
    STATES,
    SUBSCRIPTIONS,
    Workflow,
)

MOST_LOGS = 100  # of the steps of an instance, with it
Shown = JSONObject
LISTED = [one for one in INSTANCES.c if one.name not in ("position", "resumed_at")]


def page(
    wanted: JSONMapping, skip: int, limit: int, *, by: Principal, most: int | None = None
) -> tuple[list[Shown], int]:
    """Instances, newest first, and the total (counted up to one more than `most`).

    `wanted` may have kind, workflow_id, status, from_date and to_date.
    """
    mine = [*_visible(by), *_wanted(wanted)]
    total = counts.count_up_to(INSTANCES, mine, most)
    chosen = sa.select(*LISTED).where(*mine).order_by(INSTANCES.c.id.desc())
    rows = db.connection().execute(chosen.offset(skip).limit(limit)).mappings()
    return [_shown(row, by) for row in rows], total


def failed(limit: int, *, by: Principal) -> Sequence[Any]:
    """The newest failed instances with the name of their workflow, without their data."""
    its = (Workflow.account_id == INSTANCES.c.account_id, Workflow.id == INSTANCES.c.workflow_id)
    told = [INSTANCES.c[name] for name in ("account_id", "id", "kind", "completed_at")]
    chosen = sa.select(*told, Workflow.name).outerjoin(Workflow, sa.and_(*its))
    mine = chosen.where(*_visible(by), INSTANCES.c.status == FAILED)
    return db.connection().execute(mine.order_by(INSTANCES.c.id.desc()).limit(limit)).all()


def failed_of(accounts: Sequence[str], limit: int) -> Sequence[Any]:
    """The newest failed instances of some accounts."""
    table = INSTANCES.c
    each = [
        sa.select(table.account_id, table.id, table.workflow_id, table.completed_at)
        .where(table.account_id == account_id, table.status == FAILED)
        .order_by(table.id.desc())
        .limit(limit)
        for account_id in accounts
    ]
    if not each:
        return ()
    rows = sa.union_all(*(sa.select(one.subquery()) for one in each)).subquery()
    its = (Workflow.account_id == rows.c.account_id, Workflow.id == rows.c.workflow_id)
    chosen = sa.select(rows, Workflow.name).outerjoin(Workflow, sa.and_(*its))
    return db.connection().execute(chosen.order_by(rows.c.id.desc()).limit(limit)).all()


def get(instance_id: str, *, by: Principal, skip: int = 0, limit: int | None = None) -> Shown:
    """One instance with a page of its step log, oldest first. Raises NotFound."""
    row = _found(instance_id, by)
    logs, total = _logs(row, skip, MOST_LOGS if limit is None else limit, by)
    return {**_shown(row, by), "step_logs": logs, "step_logs_total": total}


def step_logs(instance_id: str, skip: int, limit: int, *, by: Principal) -> tuple[list[Shown], int]:
    """A page of an instance's step log, oldest first, and the total. Raises NotFound."""
    return _logs(_found(instance_id, by), skip, limit, by)


def _found(instance_id: str, by: Principal) -> Mapping[Any, Any]:
    mine = (*_visible(by), INSTANCES.c.id == instance_id.lower())
    row = db.connection().execute(sa.select(*LISTED).where(*mine)).mappings().first()
    if row is None:
        raise NotFound("No instance with this id.")
    return row


def _logs(row: Mapping[Any, Any], skip: int, limit: int, by: Principal) -> tuple[list[Shown], int]:
    mine = (LOGS.c.account_id == row["account_id"], LOGS.c.instance_id == row["id"])
    # Older versions kept whole what may be a million characters long.
    long = [LOGS.c.input, LOGS.c.output]
    texts = [sa.func.substr(one, 1, step_log.LONGEST_STORED).label(one.name) for one in long]
    lengths = [sa.func.length(one).label(f"{one.name}_length") for one in long]
    columns = [one for one in LOGS.c if one.name not in ("input", "output")]
    chosen = sa.select(*columns, *texts, *lengths).where(*mine)
    ordered = chosen.order_by(LOGS.c.started_at, LOGS.c.id).offset(skip).limit(limit)
    logs = db.connection().execute(ordered).mappings()
    return [_shown_log(one, row, by) for one in logs], counts.count_up_to(LOGS, mine, None)


def cancel(instance_id: str, *, by: Principal) -> Shown:
    """Cancel an active instance. Raises NotFound, Conflict."""
    by.require_account_id()
    over = {"status": CANCELLED, "due_at": None, "completed_at": database_now()}
    with db.transaction():
        mine = (*_visible(by), INSTANCES.c.id == instance_id.lower())
        change = sa.update(INSTANCES).where(*mine, INSTANCES.c.status.in_(ACTIVE)).values(**over)
        row = db.connection().execute(change.returning(INSTANCES.c.account_id)).first()
        if row is None:
            get(instance_id, by=by)
            raise Conflict("This instance has already finished.", error="already_over")
        _close(row.account_id, instance_id.lower())
    return get(instance_id, by=by)


def _close(account_id: str, instance_id: str) -> None:
    queue.close_logs(account_id, instance_id, CANCELLED)
    table = SUBSCRIPTIONS.c
    waits = (table.account_id == account_id, table.instance_id == instance_id)
    db.connection().execute(sa.delete(SUBSCRIPTIONS).where(*waits))


def resume(instance_id: str, *, by: Principal) -> Shown:
    """Resume a failed instance at the failed step. Raises NotFound, Conflict."""
    by.require_account_id()
    with db.transaction():
        mine = (*_visible(by), INSTANCES.c.id == instance_id.lower())
        if not _resumed(*mine):
            get(instance_id, by=by)
            raise Conflict("Only failed instances can be resumed.", error="not_failed")
    return get(instance_id, by=by)


def resume_all(wanted: JSONMapping, *, by: Principal, at: datetime | None = None) -> int:
    """Resume all matching failed instances; returns how many.

    `after_resuming` reports their progress by the moment `at`.
    """
    by.require_account_id()
    mine = (*_visible(by), *_wanted({**wanted, "status": FAILED}))
    with db.transaction():
        return _resumed(*mine, resumed_at=at or clock.now())


def after_resuming(at: datetime, *, by: Principal) -> dict[str, int]:
    """The number of instances resumed together, by status. Raises NotFound."""
    mine = (*_visible(by), INSTANCES.c.resumed_at == at)
    counted = sa.select(INSTANCES.c.status, sa.func.count()).where(*mine)
    found = {row[0]: row[1] for row in db.connection().execute(counted.group_by("status"))}
    if not found:
        raise NotFound("No instances were resumed at this time, or they no longer exist.")
    return {state: found.get(state, 0) for state in STATES}


def _resumed(*which: Any, **noted: object) -> int:
    # Whoever changes the status first has resumed it; the others find nothing that failed.
    again = {"status": PENDING, "due_at": database_now(), "error_message": None, **noted}
    change = sa.update(INSTANCES).where(*which, INSTANCES.c.status == FAILED)
    done = db.connection().execute(change.values(**again, completed_at=None))
    db.on_commit(jobs.wake)
    return int(done.rowcount)


def _visible(by: Principal) -> list[Any]:
    return [] if by.account_id is None else [INSTANCES.c.account_id == by.account_id]


def _wanted(wanted: JSONMapping) -> Iterator[Any]:
    table = INSTANCES.c
    for name in ("kind", "status", "workflow_id"):
        if wanted.get(name):
            yield table[name] == wanted[name]
    # Ids begin with their time, so a key finds what began then.
    if wanted.get("from_date"):
        yield table.id >= first_id(wanted["from_date"])
    if wanted.get("to_date"):
        yield table.id < first_id(wanted["to_date"])


def is_hidden(row: Mapping[Any, Any], by: Principal) -> bool:
    """Whether an instance has personal data that the caller may not see."""
    return bool(row["holds_pii"]) and masking.masks_for(by)


def _shown(row: Mapping[Any, Any], by: Principal) -> Shown:
    shown: Shown = dict(row)
    shown["withheld"], context = is_hidden(row, by), serialization.loads(row["context"])
    shown["done"] = list(context.get("steps", ()))  # names, which are nobody's data
    shown["context"] = {} if shown["withheld"] else context
    shown["error_message"] = _withheld(row, shown["withheld"])
    return shown


def _shown_log(log: Mapping[Any, Any], row: Mapping[Any, Any], by: Principal) -> Shown:
    shown: Shown = {**log, "workflow_id": row["workflow_id"]}
    hidden = is_hidden(row, by)
    for name in ("input", "output"):
        length = shown.pop(f"{name}_length")
        shown[name] = None if hidden else step_log.shown(log[name], length)
    shown["error_message"] = _withheld(log, hidden)
    return shown


def _withheld(row: Mapping[Any, Any], hidden: bool) -> str | None:
    # What a step failed of may quote what it was given.
    message: str | None = row["error_message"]
    return "Withheld: may have personal data." if hidden and message else message
