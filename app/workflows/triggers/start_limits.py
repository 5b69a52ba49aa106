"""Limits on new instances: per account, per transaction, and per chain of triggers.

Limiting the depth of a chain is not enough: eight levels that double each time are wide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from app import config, db
from app.accounts.usage import models, quotas
from app.db.prepared import PreparedStatement
from app.errors import AppError
from app.web import rate_limits
from app.web.rate_limits import Limit
from app.workflows.models import INSTANCES, InstanceState

MAX_PER_EVENT = 1000  # instances in the chain of one event
MAX_TRANSACTION_BYTES = 64 * 2**20  # bytes of contexts of the instances that one transaction starts
MAX_REFUSED_PER_HOUR = 1000  # refused instances of an account stored as cancelled
HOUR, DAY = 3600, 86_400
TOO_MANY = "The account has {} {} instances ({}). The instance did not run."
TOO_MUCH = (
    f"One request may start instances of {MAX_TRANSACTION_BYTES} bytes. The instance did not run."
)
TOO_WIDE = f"The event has started {MAX_PER_EVENT} further instances. The instance did not run."
NO_STEPS = "The account has used up its quota of workflow_steps. The instance did not run."
Row = Mapping[str, Any]


class LimitReached(AppError):
    """A limit on new instances, named in the message."""

    status = 429
    error = "limit_reached"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"Retry-After": "60"})


@dataclass
class Room:
    """The starts that the open transaction has left in an account."""

    pending: int
    is_waiting_full: bool
    bytes: int
    notes: int
    steps_used_up: bool

    def refusal(self) -> str | None:
        """The reason why no more instances may start; None if they may."""
        settings = config.current()
        if self.pending <= 0:
            limit = settings.workflow_pending_max
            return TOO_MANY.format(limit, InstanceState.PENDING, "SERVICE_WORKFLOW_PENDING_MAX")
        if self.is_waiting_full:
            limit = settings.workflow_waiting_max
            return TOO_MANY.format(limit, InstanceState.WAITING, "SERVICE_WORKFLOW_WAITING_MAX")
        if self.steps_used_up:
            return NO_STEPS
        return TOO_MUCH if self.bytes <= 0 else None

    def take(self, size: int) -> None:
        """Count a new instance with a context of this size."""
        self.pending -= 1
        self.bytes -= size

    def take_note(self) -> bool:
        """Whether to record one more refused instance."""
        self.notes -= 1
        return self.notes >= 0


def room(account_id: str) -> Room:
    """The instances that the open transaction may still start in an account; counted once."""
    rooms: dict[str, Room] = db.notes().setdefault("workflow_room", {})
    if account_id not in rooms:
        settings = config.current()
        pending, waiting = settings.workflow_pending_max, settings.workflow_waiting_max
        parameters = {"account": account_id, "most_pending": pending, "most_waiting": waiting}
        ((pending_count, waiting_count),) = _active_counts().all(parameters)
        is_full = waiting_count >= waiting
        rooms[account_id] = Room(
            pending - pending_count,
            is_full,
            MAX_TRANSACTION_BYTES,
            MAX_REFUSED_PER_HOUR,
            quotas.is_used_up(account_id, models.STEPS),
        )
    return rooms[account_id]


@lru_cache
def _active_counts() -> PreparedStatement:
    """The number of pending and waiting instances, counted up to the limits."""

    def counted(status: str) -> Any:
        conditions = (
            INSTANCES.c.account_id == sa.bindparam("account"),
            INSTANCES.c.status == status,
        )
        limit = sa.bindparam(f"most_{status}", type_=sa.Integer)
        rows: Any = (
            sa.select(sa.literal_column("1").label("one")).select_from(INSTANCES).where(*conditions)
        )
        count = sa.select(sa.func.count()).select_from(rows.limit(limit).subquery())
        return count.scalar_subquery()

    return PreparedStatement(
        sa.select(counted(InstanceState.PENDING), counted(InstanceState.WAITING))
    )


def admitted(rows: Sequence[Row]) -> Iterator[Row]:
    """The instances to store, with a limited number of refused ones."""
    refused: dict[str, list[Row]] = {}
    chains: dict[str, list[Row]] = {}
    for row in rows:
        if row["over_bound"]:
            refused.setdefault(row["account_id"], []).append(row)
        elif row["depth"] > 1:
            chains.setdefault(row["root_id"], []).append(row)
        else:
            yield row
    for root_id, started in chains.items():
        yield from _admit_chain(root_id, started)
    for account_id, refused_rows in refused.items():
        limit = Limit("workflow-refused", MAX_REFUSED_PER_HOUR, HOUR).of(account_id)
        total = rate_limits.increment(limit, len(refused_rows))
        yield from refused_rows[: max(0, MAX_REFUSED_PER_HOUR - total + len(refused_rows))]


def _admit_chain(root_id: str, rows: list[Row]) -> Iterator[Row]:
    """The allowed instances of a chain of triggers, then one note that there were more."""
    total = rate_limits.increment(
        Limit("workflow-chain", MAX_PER_EVENT, DAY).of(root_id), len(rows)
    )
    allowed = max(0, MAX_PER_EVENT - total + len(rows))
    yield from rows[:allowed]
    if total > MAX_PER_EVENT >= total - len(rows):
        yield refused(rows[allowed], TOO_WIDE)


def refused(row: Row, reason: str) -> Row:
    """A refused instance as stored: cancelled, with the reason only."""
    values = {
        "status": InstanceState.CANCELLED,
        "error_message": reason,
        "due": False,
        "holds_pii": False,
    }
    return {**row, **values, "context": "{}", "completed_at": row["created_at"]}
