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
from app.workflows import serialization
from app.workflows.engine.position import Place
from app.workflows.models import RUNNING, WAITING

LONGEST_MESSAGE = 2000
LONGEST_VALUE = 16 * 2**10  # characters of an input, or an output, as JSON
LARGEST = 10 * 2**20  # bytes of the inputs and outputs of one instance
MOST_IDS = 100  # of records, in what is cut off
# What a cut value takes at most: its beginning is JSON within JSON.
LONGEST_STORED = 2 * LONGEST_VALUE + 40 * MOST_IDS + 200
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
LONGEST_WORD = 400
FULL = f"The log of this instance has {LARGEST} bytes. Later inputs and outputs are not stored."


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
    for entry in (_within_quota(one, run.position.kept) for one in entries):
        over = entry.status not in (WAITING, RUNNING)
        log = entry.place.spot.get("log")
        if over and log:
            old[log] = _result(entry, now)
        else:
            key = {"account_id": run.account_id, "instance_id": run.id, "id": log or new_id()}
            new.append({**key, **_about(entry, run.step_began), **_result(entry, now)})
    return Rows(new, old)


def _result(entry: Entry, now: datetime) -> JSONObject:
    over = entry.status not in (WAITING, RUNNING)
    return {
        "status": entry.status,
        "output": entry.output,
        "error_message": entry.error[:LONGEST_MESSAGE] if entry.error else None,
        "completed_at": now if over else None,
    }


def _about(entry: Entry, began: datetime) -> JSONObject:
    spot, since = entry.place.spot, entry.place.spot.get("since")
    return {
        "place": entry.place.path,
        "step_name": entry.place.step.name,
        "step_type": entry.place.step.type,
        "attempt": spot.get("attempt", 0) + 1,
        "started_at": clock.parse(since) if since else began,
        "input": entry.input,
    }


def _within_quota(entry: Entry, position: JSONObject) -> Entry:
    """The entry with input and output as stored."""
    texts = {name: getattr(entry, name) for name in ("input", "output")}
    for name in (name for name, value in texts.items() if value is not None):
        text, logged = serialization.dumps(texts[name]), position.get("logged", 0)
        stored = cut(text) if logged < LARGEST else _marked(len(text.encode()), reason=FULL)
        position["logged"] = logged + len(stored.encode())
        texts[name] = stored
    return replace(entry, **texts)


def cut(text: str) -> str:
    """JSON for the log: long values as `{truncated, bytes, beginning, ids}`.

    Keeps the record ids of the cut part: an erasure finds the row by them.
    """
    if len(text) <= LONGEST_VALUE:
        return text
    beginning = text[: _end_of_word(text)]
    ids = list(dict.fromkeys(ID.findall(text, len(beginning))))
    if len(ids) > MOST_IDS:
        beginning, ids = "", []
    return _marked(len(text.encode()), beginning=beginning, ids=ids)


def _end_of_word(text: str) -> int:
    """Where to cut: an erasure would not find half an address."""
    earliest = LONGEST_VALUE - LONGEST_WORD
    return max(earliest, *(text.rfind(end, earliest, LONGEST_VALUE) for end in ' ",'))


def shown(text: str | None, characters: int) -> object:
    """A stored value for the API; of long values from older versions, the beginning."""
    if text is None or characters <= LONGEST_STORED:
        return None if text is None else serialization.loads(text)
    return serialization.loads(_marked(characters, beginning=text[:LONGEST_VALUE]))


def _marked(size: int, **more: Any) -> str:
    return serialization.dumps({"truncated": True, "bytes": size, **more})
