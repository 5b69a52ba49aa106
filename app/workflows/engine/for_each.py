"""The records that a `for_each` runs its steps for, one after the other.

The position has the present record and its place in the order, so nothing grows with their number.
Records are read ahead in pages, which are dropped as soon as one of theirs has changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from app.accounts.usage import models, quotas
from app.audit.security_log import reads
from app.db.versioned_cache import Stale
from app.errors import AnswerTooLarge, AppError
from app.records import service as records
from app.records.service import Following
from app.records.store.reads import ListQuery
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.workflows.engine.position import Place

PAGE_SIZES = (100, 10, 1)  # smaller ones where records are large
MAX_RECORD_BYTES = 100 * 2**10
MAX_PAGES = 10  # of nested and parallel ones
MAX_PAGE_SECONDS = 10  # that a page is used; then rules and filter are asked again
MAX_COUNTED = 1_000_000
MAX_DURATION = timedelta(days=7)
MAX_STEPS_PER_RECORD = 1000
DEFAULT_SORT = "id"
TOO_LARGE = "The record {} is larger than {} bytes."
TOO_LONG = f"Stopped after {MAX_DURATION.days} days. Resume the instance to go on."
NO_STEPS = "The account has used up its quota of workflow_steps. Resume the instance later."


@dataclass(frozen=True)
class Page:
    """Records that have been read ahead, by the position that each follows."""

    read_at: float
    records: dict[bytes, Following]


def start(run: Any, settings: JSONMapping) -> JSONObject | None:
    """The state of a `for_each` before its first record; None if there are none.

    Records that are created later are left out: their ids are larger than the largest one now.
    """
    parameters = {"sort": ["-id"], "fields": ["id"]}
    if settings["filter"]:
        parameters["filter"] = [settings["filter"]]
    query = ListQuery(parameters=parameters, limit=1, count=True, max_total=MAX_COUNTED)
    newest, total = records.page(settings["collection"], query, by=run.owner())
    if not newest:
        return None
    last = f'id <= "{newest[0]["id"]}"'
    filter = f"({settings['filter']}) && {last}" if settings["filter"] else last
    return {
        **settings,
        "filter": filter,
        "total": total if (total or 0) <= MAX_COUNTED else None,
        "index": -1,
        "failed": 0,
        "errors": [],
        "after": [],
        "item": None,
        "spots": [None],
    }


def read_page(run: Any, place: Place) -> None:
    """Read the next records ahead."""
    inner = place.spot["inner"]
    parameters = {"filter": [inner["filter"]], "sort": [inner["sort"]]}
    found, by = list[Following](), run.owner()
    for size in PAGE_SIZES:
        query = ListQuery(parameters=parameters, limit=size)
        try:
            with reads.by_path("workflow"):
                found = records.following(inner["collection"], query, inner["after"], by=by)
            break
        except AnswerTooLarge:
            if size == PAGE_SIZES[-1]:
                raise
    positions = [inner["after"], *(one.position for one in found)]
    by_position = dict(zip(map(_key, positions), found, strict=False))
    if len(run.pages) >= MAX_PAGES:
        run.pages.clear()
    run.pages[place.path] = Page(time.monotonic(), by_position)


def take_large(run: Any, place: Place) -> str | None:
    """The id of the next record if no position can hold it, which is then behind; else None."""
    inner = place.spot["inner"]
    found = run.pages[place.path].records.get(_key(inner["after"]))
    if found is None or _size(found) <= MAX_RECORD_BYTES:
        return None
    inner["after"] = found.position
    inner["index"] += 1
    return str(found.record["id"])


def next_record(run: Any, place: Place) -> tuple[object, Sequence[object]] | None:
    """The next record and its position, if it has been read and has not changed since."""
    inner, page = place.spot["inner"], run.pages.get(place.path)
    if page is None or time.monotonic() - page.read_at > MAX_PAGE_SECONDS:
        return None
    found = page.records.get(_key(inner["after"]))
    if found is not None and _size(found) > MAX_RECORD_BYTES:
        return None
    try:
        if found is None or not records.is_current(inner["collection"], found, by=run.owner()):
            return None
    except (AppError, Stale):  # reading the page anew says so
        return None
    return serialization.plain(found.record), found.position


def output(inner: JSONMapping) -> JSONObject:
    """The output of a `for_each` that is done."""
    counts = {"count": inner["index"] + 1, "failed": inner["failed"]}
    return {**counts, "errors": inner["errors"]}


def is_out_of_steps(account_id: str) -> bool:
    """Whether the account's quota of steps is used up."""
    return quotas.is_used_up(account_id, models.STEPS)


def _size(found: Following) -> int:
    return len(serialization.dumps_text(found.record))


def _key(position: Sequence[object]) -> bytes:
    return orjson.dumps(position)
