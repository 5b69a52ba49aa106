"""New instances: due at once, written in the transaction of their trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, jobs
from app.accounts.usage import models, quotas
from app.context import trigger_depth
from app.db.functions import now_if
from app.errors import InvalidValues, problem
from app.ids import new_id
from app.jobs.rq_queues import WORKFLOWS
from app.types import JSONObject
from app.workflows.models import INSTANCES, LARGEST_CONTEXT, InstanceState
from app.workflows.triggers import start_limits

MAX_DEPTH = 8
INITIAL_POSITION = "{}"
TOO_DEEP = f"The chain of triggers is longer than {MAX_DEPTH}. The instance did not run."
TOO_LARGE = f"The trigger data is larger than {LARGEST_CONTEXT} bytes. The instance did not run."

Row = Mapping[str, Any]

_INSERT = sa.insert(INSTANCES).values(due_at=now_if(sa.bindparam("due", type_=sa.Boolean)))


def row(
    workflow: Any,
    trigger: object,
    trigger_type: str,
    *,
    holds_pii: bool = False,
    root_id: str | None = None,
) -> JSONObject | None:
    """A new instance of a workflow (an object with account_id, id, kind and version).

    None if a limit is exceeded and enough refused instances are recorded. `root_id` is the same for
    all instances that one event starts.
    """
    room = start_limits.room(workflow.account_id)
    limit_message = room.refusal()
    if limit_message and not room.take_note():
        return None
    id = new_id()
    instance = {
        "account_id": workflow.account_id,
        "id": id,
        "workflow_id": workflow.id,
        "kind": workflow.kind,
        "version": workflow.version,
        "trigger_type": trigger_type,
        "status": InstanceState.PENDING,
        "position": INITIAL_POSITION,
        "context": "{}",
        "error_message": None,
        "depth": trigger_depth.chain.get().depth + 1,
        "root_id": trigger_depth.chain.get().root or root_id or id,
        "holds_pii": holds_pii,
        "completed_at": None,
        "created_at": clock.now(),
        "due": True,
        "over_bound": False,
    }
    refusal = limit_message or (TOO_DEEP if instance["depth"] > MAX_DEPTH else None)
    if refusal is None:
        instance["context"] = orjson.dumps({"trigger": trigger}).decode()
        refusal = TOO_LARGE if len(instance["context"]) > LARGEST_CONTEXT else None
    if refusal is None:
        room.take(len(instance["context"]))
        return instance
    return {**start_limits.refused(instance, refusal), "over_bound": limit_message is not None}


def write(rows: Sequence[Row]) -> None:
    """Store new instances in the open transaction, within the limits."""
    _store(list(start_limits.admitted(rows)))


def start(row: Row | None) -> str:
    """Store an instance for a request; returns its id.

    Raises LimitReached, or InvalidValues if the trigger data is too large.
    """
    if row is not None and row["error_message"] == start_limits.NO_STEPS:
        quotas.check_stored(row["account_id"], models.STEPS)
    if row is None or row["over_bound"]:
        raise start_limits.LimitReached(row["error_message"] if row else start_limits.TOO_MUCH)
    if row["error_message"] == TOO_LARGE:
        raise InvalidValues([problem("body", "too_long", TOO_LARGE)])
    stored = list(start_limits.admitted([row]))
    if not stored or stored[0]["error_message"] == start_limits.TOO_WIDE:
        raise start_limits.LimitReached(start_limits.TOO_WIDE)
    _store(stored)
    return str(row["id"])


def _store(rows: Sequence[Row]) -> None:
    values = [{name: value for name, value in row.items() if name != "over_bound"} for row in rows]
    if values:
        db.connection().execute(_INSERT, values if len(values) > 1 else values[0])
        for account_id in {row["account_id"] for row in values}:
            jobs.announce_on_commit(WORKFLOWS, account_id)
