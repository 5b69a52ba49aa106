"""The rows of the log that tells of an instance's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app import clock
from app.ids import new_id
from app.workflows import kept
from app.workflows.models import RUNNING, WAITING
from app.workflows.position import Place

LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Entry:
    """What is to be told of a step: that it has begun, or what came of it."""

    place: Place
    status: str
    input: Any = None
    output: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Rows:
    """Entries as they are stored: new rows, and what becomes of earlier ones by id."""

    new: Sequence[dict[str, Any]]
    old: dict[str, dict[str, Any]]


def rows(entries: Sequence[Entry], run: Any) -> Rows:
    """The rows of entries of a run."""
    new, old, now = [], {}, run.now
    for entry in entries:
        over = entry.status not in (WAITING, RUNNING)
        log = entry.place.spot.get("log")
        if over and log:
            old[log] = _result(entry, now)
        else:
            key = {"account_id": run.account_id, "instance_id": run.id, "id": log or new_id()}
            new.append({**key, **_about(entry, run.step_began), **_result(entry, now)})
    return Rows(new, old)


def _result(entry: Entry, now: datetime) -> dict[str, Any]:
    over = entry.status not in (WAITING, RUNNING)
    return {
        "status": entry.status,
        "output": None if entry.output is None else kept.dumps(entry.output),
        "error_message": entry.error[:LONGEST_MESSAGE] if entry.error else None,
        "completed_at": now if over else None,
    }


def _about(entry: Entry, began: datetime) -> dict[str, Any]:
    spot, since = entry.place.spot, entry.place.spot.get("since")
    return {
        "place": entry.place.path,
        "step_name": entry.place.step.name,
        "step_type": entry.place.step.type,
        "attempt": spot.get("attempt", 0) + 1,
        "started_at": clock.parse(since) if since else began,
        "input": None if entry.input is None else kept.dumps(entry.input),
    }
