"""The rows of the step log.

Nothing reads them back: later steps use the context. So the log keeps only the beginning of long
values, and limits the size per instance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app import clock
from app.ids import new_id
from app.types import JSONObject
from app.web import serialization
from app.workflows.engine.position import Place
from app.workflows.models import InstanceState

LONGEST_MESSAGE = 2000
LONGEST_VALUE = 16 * 2**10  # characters of an input, or an output, as JSON
MAX_LOG_BYTES = 10 * 2**20  # bytes of the inputs and outputs of one instance
MAX_IDS = 100  # record ids kept from the cut part
# Upper bound of a cut value, whose beginning is JSON within JSON.
LONGEST_STORED = 2 * LONGEST_VALUE + 40 * MAX_IDS + 200
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
LONGEST_WORD = 400
LOG_FULL = (
    f"The log of this instance has {MAX_LOG_BYTES} bytes. Later inputs and outputs are not stored."
)


@dataclass(frozen=True)
class Entry:
    """A log entry of a step: its start or its result."""

    place: Place
    status: str
    input: object = None
    output: object = None
    error: str | None = None


@dataclass(frozen=True)
class Rows:
    """Entries to store: new rows, and changes of existing ones by id."""

    new: Sequence[JSONObject]
    old: dict[str, JSONObject]


def rows(entries: Sequence[Entry], run: Any) -> Rows:
    """The rows of a run's entries; the position counts their bytes."""
    new, old, now = [], {}, run.now
    for entry in (_within_quota(entry_, run.position.state) for entry_ in entries):
        is_finished = entry.status not in (InstanceState.WAITING, InstanceState.RUNNING)
        log = entry.place.spot.get("log")
        if is_finished and log:
            old[log] = _result(entry, now)
        else:
            step, spot, since = entry.place.step, entry.place.spot, entry.place.spot.get("since")
            row = {
                "account_id": run.account_id,
                "instance_id": run.id,
                "id": log or new_id(),
                "place": entry.place.path,
                "step_name": step.name,
                "step_type": step.type,
                "attempt": spot.get("attempt", 0) + 1,
                "started_at": clock.parse(since) if since else run.step_began,
                "input": entry.input,
            }
            new.append({**row, **_result(entry, now)})
    return Rows(new, old)


def _result(entry: Entry, now: datetime) -> JSONObject:
    is_finished = entry.status not in (InstanceState.WAITING, InstanceState.RUNNING)
    return {
        "status": entry.status,
        "output": entry.output,
        "error_message": entry.error[:LONGEST_MESSAGE] if entry.error else None,
        "completed_at": now if is_finished else None,
    }


def _within_quota(entry: Entry, position: JSONObject) -> Entry:
    """The entry with input and output as stored."""
    texts = {name: getattr(entry, name) for name in ("input", "output")}
    for name in (name for name, value in texts.items() if value is not None):
        text, logged = serialization.dumps_text(texts[name]), position.get("logged", 0)
        stored = (
            cut(text) if logged < MAX_LOG_BYTES else _truncated(len(text.encode()), reason=LOG_FULL)
        )
        position["logged"] = logged + len(stored.encode())
        texts[name] = stored
    return replace(entry, **texts)


def cut(text: str) -> str:
    """JSON for the log: long values as `{truncated, bytes, beginning, ids}`.

    Keeps the record ids of the cut part: an erasure finds the row by them.
    """
    if len(text) <= LONGEST_VALUE:
        return text
    # Cut between words: an erasure would not find half an address.
    earliest = LONGEST_VALUE - LONGEST_WORD
    boundaries = (text.rfind(end, earliest, LONGEST_VALUE) for end in ' ",')
    beginning = text[: max(earliest, *boundaries)]
    ids = list(dict.fromkeys(ID.findall(text, len(beginning))))
    if len(ids) > MAX_IDS:
        beginning, ids = "", []
    return _truncated(len(text.encode()), beginning=beginning, ids=ids)


def stored_value(text: str | None, characters: int) -> object:
    """A stored value for the API; of long values from older versions, the beginning."""
    if text is None or characters <= LONGEST_STORED:
        return None if text is None else serialization.loads(text)
    return serialization.loads(_truncated(characters, beginning=text[:LONGEST_VALUE]))


def _truncated(size: int, **more: object) -> str:
    return serialization.dumps_text({"truncated": True, "bytes": size, **more})
