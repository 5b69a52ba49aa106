"""Parsed steps.

A list of steps is a `Series`; loops and parallel steps contain further ones. Requires steps that
passed `checks`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.operator.types import OF_WORKFLOWS
from app.types import JSONMapping, JSONObject

DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_DURATION = 366 * 86400

ACTION, CONDITION, LOOP, PARALLEL = "action", "condition", "loop", "parallel"
FOR_EACH = "for_each"
LOOPS = (LOOP, FOR_EACH)
WAIT_DELAY, WAIT_CONDITION, WAIT_EVENT = "wait_delay", "wait_condition", "wait_event"
# Properties of each type besides name, type and next; `*` marks required ones.
PROPERTIES: Mapping[str, tuple[str, ...]] = {
    ACTION: ("*action_type", "*config"),
    CONDITION: ("*expression", "on_true", "on_false"),
    WAIT_DELAY: ("*duration",),
    WAIT_CONDITION: ("*expression", "poll_interval", "timeout"),
    WAIT_EVENT: ("*event", "collection", "condition", "timeout"),
    LOOP: ("*items", "*steps"),
    FOR_EACH: ("*collection", "filter", "sort", "on_error", "*steps"),
    PARALLEL: ("*branches",),
}
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "send_webhook": ("*url", "method", "headers", "body"),
    "send_email": ("*to", "*subject", "*body"),
    "create_record": ("*collection", "*data"),
    "update_record": ("*collection", "*record_id", "*data"),
    "delete_record": ("*collection", "*record_id"),
    "query_records": ("*collection", "filter", "sort", "limit"),
    "aggregate_records": ("*collection", "*functions", "filter", "group_by", "limit"),
}
STOP, CONTINUE = "stop", "continue"
ON_ERROR = (STOP, CONTINUE)
"""What becomes of a `for_each` when a step fails for a record."""
OWN_PROPERTIES = ("input",)
"""Those of the types of steps that extensions add."""
RECORD_EVENTS = ("records.create", "records.update", "records.delete")
EVENTS = (*RECORD_EVENTS, *OF_WORKFLOWS)
"""Those of records, and those of the account's users, groups and invitations."""
Written = JSONMapping
Store = Callable[[Callable[[], None], Callable[[], None]], None]
"""Stores what a step has written and calls the first, in one transaction; the second if it fails
and begins anew."""
OwnStep = Callable[..., tuple[object, Store]]
OWN_STEPS: dict[str, OwnStep] = {}
"""The types of steps that extensions add.

Each is called with the owner's principal, the input, the idempotency key, the instance's id and its
chain, outside of a transaction. It returns the output, and what stores its writes.
"""


@dataclass(frozen=True)
class Step:
    """One step, and the step that follows it in its list."""

    name: str
    type: str
    settings: Written
    following: str | None
    inner: tuple[Series, ...] = ()

    @property
    def action(self) -> str | None:
        return self.settings.get("action_type")

    @property
    def is_own(self) -> bool:
        """Whether an extension adds its type, or did so."""
        return self.type not in PROPERTIES

    @property
    def config(self) -> Written:
        value: Written = self.settings["config"]
        return value


@dataclass(frozen=True)
class Series:
    """A list of steps."""

    steps: Mapping[str, Step]
    first: str | None

    def walk(self) -> Iterator[Step]:
        """All steps, including inner ones."""
        for step in self.steps.values():
            yield step
            for series in step.inner:
                yield from series.walk()


def parse_series(steps: Sequence[Written]) -> Series:
    """Parse valid steps."""
    steps_by_name = {}
    for index, step in enumerate(steps):
        default = steps[index + 1]["name"] if index + 1 < len(steps) else None
        following = step.get("next", default)  # null ends the list
        inner = tuple(parse_series(steps) for steps in lists_in(step))
        steps_by_name[step["name"]] = Step(step["name"], step["type"], step, following, inner)
    return Series(steps_by_name, steps[0]["name"] if steps else None)


def lists_in(step: Written) -> list[Any]:
    """The lists of steps within a step."""
    if step.get("type") in LOOPS:
        return [step.get("steps")]
    branches = step.get("branches") if step.get("type") == PARALLEL else None
    return list(branches) if isinstance(branches, list) else []


def normal(steps: object) -> Any:
    """Steps with the properties of `config` moved to the step, except for actions."""
    if not isinstance(steps, list):
        return steps
    return [_normal_step(step) if isinstance(step, dict) else step for step in steps]


def _normal_step(step: JSONObject) -> JSONObject:
    result = dict(step)
    if result.get("type") != ACTION and isinstance(result.get("config"), dict):
        result = {**result.pop("config"), **result}
    if "steps" in result:
        result["steps"] = normal(result["steps"])
    if isinstance(result.get("branches"), list):
        result["branches"] = [normal(branch) for branch in result["branches"]]
    return result


def event_name(text: object) -> str | None:
    """The full name of an event, with `records.` if it has no dot; None if there is none."""
    if not isinstance(text, str):
        return None
    full_name = text if "." in text else f"records.{text}"
    return full_name if full_name in EVENTS else None


def awaited(series: Series) -> list[str]:
    """The events that the steps may wait for, as `event collection` or `event`."""
    result = set()
    for step in series.walk():
        if step.type == WAIT_EVENT:
            collection = (step.settings.get("collection") or "").lower()
            result.add(f"{event_name(step.settings['event'])} {collection}".strip())
    return sorted(result)


def seconds_of(text: object) -> int | None:
    """The seconds of `30s`, `5m`, `2h` or `1d`; None if it is invalid or longer than a year."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    length = int(match[1]) * UNITS[match[2]]
    return length if length <= LONGEST_DURATION else None
