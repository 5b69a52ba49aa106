"""New instances: rows that are due at once, written in the transaction of what started them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from app import chain, clock, db, jobs
from app.database_clock import database_now
from app.ids import new_id
from app.workflows.models import CANCELLED, INSTANCES, PENDING

DEEPEST = 8
LARGEST_CONTEXT = 256 * 2**10  # bytes of JSON
NOT_BEGUN = "{}"
TOO_DEEP = f"The chain of triggers that led here is longer than {DEEPEST}: nothing was done."
TOO_LARGE = f"What started this is larger than {LARGEST_CONTEXT} bytes: nothing was done."

_INSERT = sa.insert(INSTANCES).values(
    due_at=sa.case((sa.bindparam("due", type_=sa.Boolean), database_now()), else_=sa.null())
)


def row(
    workflow: Any, trigger: Any, trigger_type: str, *, holds_pii: bool = False
) -> dict[str, Any]:
    """A new instance of a workflow (what has its account_id, id, kind and version)."""
    depth = chain.depth() + 1
    context = orjson.dumps({"trigger": trigger}).decode()
    refused = TOO_DEEP if depth > DEEPEST else None
    if len(context) > LARGEST_CONTEXT:
        context, refused = "{}", TOO_LARGE
    now = clock.now()
    return {
        "account_id": workflow.account_id,
        "id": new_id(),
        "workflow_id": workflow.id,
        "kind": workflow.kind,
        "version": workflow.version,
        "trigger_type": trigger_type,
        "status": CANCELLED if refused else PENDING,
        "position": NOT_BEGUN,
        "context": context,
        "error_message": refused,
        "depth": depth,
        "holds_pii": holds_pii,
        "completed_at": now if refused else None,
        "created_at": now,
        "due": refused is None,
    }


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Store new instances, as part of the open transaction."""
    db.connection().execute(_INSERT, list(rows) if len(rows) > 1 else rows[0])
    db.on_commit(jobs.wake)
