"""Runs steps within the worker's transaction, by step type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from app.errors import NotFound
from app.ids import new_id
from app.records import service as records
from app.rest import json_input
from app.types import JSONMapping
from app.workflows import serialization
from app.workflows.engine import event_waits, record_steps
from app.workflows.engine.position import Place
from app.workflows.language import durations, expressions
from app.workflows.language.definition import (
    ACTION,
    CONDITION,
    LOOP,
    PARALLEL,
    WAIT_CONDITION,
    WAIT_DELAY,
    WAIT_EVENT,
)

MOST_ITEMS = 1000
# A record's data may be as deep as in a request; here it stands in a config.
DEEPEST = json_input.MAX_DEPTH + 1
POLL, PATIENCE = "30s", "7d"


class Failed(Exception):
    """A step that cannot run; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a step: its output and the next step, or that it waits or was entered."""

    output: object = None
    target: str | None = None
    given: object = None
    waits: bool = False
    entered: bool = False


def done(run: Any, place: Place) -> Outcome:
    """Run a step without external effects. Raises Failed, AppError, Stale."""
    return STEPS[place.step.type](run, place)


def output_of(ended: Place) -> object:
    """The output of a finished loop or parallel step."""
    inner = ended.spot["inner"]
    return {"count": len(inner["items"])} if "items" in inner else {"branches": len(inner["spots"])}


def _action(run: Any, place: Place) -> Outcome:
    by, rendering = run.owner(), run.rendering(place)
    config = dict(place.step.config)
    asked = config.pop("filter", None)
    run.given = given = rendering.value(config)
    if isinstance(asked, str):
        given["filter"] = rendering.filter(asked)
    if json_input.depth(given) > DEEPEST:
        raise Failed(f"The rendered templates are nested deeper than {json_input.MAX_DEPTH}.")
    output = record_steps.carry_out(place.step.action or "", given, by)
    run.holds_pii = run.holds_pii or record_steps.shows_personal(given, by)
    return Outcome(output, place.step.following, given)


def _condition(run: Any, place: Place) -> Outcome:
    text = place.step.settings["expression"]
    result = expressions.holds(text, run.names(place), run.now)
    target = place.step.settings.get("on_true" if result else "on_false")
    return Outcome({"result": result}, target, {"expression": text})


def _loop(run: Any, place: Place) -> Outcome:
    items = run.rendering(place).value(place.step.settings["items"])
    if not isinstance(items, list):
        raise Failed("The items of the loop are not a list.")
    if len(items) > MOST_ITEMS:
        raise Failed(f"A loop may have at most {MOST_ITEMS} items.")
    if run.position.enter(place, items):
        return Outcome(entered=True)
    return Outcome({"count": 0}, place.step.following)


def _parallel(run: Any, place: Place) -> Outcome:
    run.position.enter(place)
    return Outcome(entered=True)


def _wait_delay(run: Any, place: Place) -> Outcome:
    given = {"duration": place.step.settings["duration"]}
    if "until" in place.spot:
        return Outcome(given, place.step.following)
    _begin_waiting(run, place)
    place.spot["until"] = _later(run, given["duration"])
    return Outcome(given=given, waits=True)


def _wait_condition(run: Any, place: Place) -> Outcome:
    step = place.step.settings
    names = {**run.names(place), **_record_now(run, step["expression"])}
    if expressions.holds(step["expression"], names, run.now):
        return Outcome({"result": True}, place.step.following, {"expression": step["expression"]})
    given = None
    if "deadline" not in place.spot:
        _begin_waiting(run, place)
        place.spot["deadline"] = _later(run, step.get("timeout") or PATIENCE)
        given = {"expression": step["expression"]}
    elif place.spot["deadline"] <= serialization.plain(run.now):
        raise Failed(f"The condition did not come true within {step.get('timeout') or PATIENCE}.")
    following = _later(run, step.get("poll_interval") or POLL)
    place.spot["until"] = min(following, place.spot["deadline"])
    return Outcome(given=given, waits=True)


def _record_now(run: Any, expression: str) -> JSONMapping:
    """The current record of the trigger, if the condition names it."""
    if not expressions.names_root(expression, "record"):
        return {}
    trigger = run.context.get("trigger")
    collection = expressions.looked_up(trigger, ("collection",))
    id = expressions.looked_up(trigger, ("record", "id"))
    # Whoever starts it by hand may send anything under these names.
    if not isinstance(id, str) or not isinstance(collection, str):
        return {"record": None}
    try:
        by = run.owner()
        found = records.get(collection, id, None, by=by)
    except NotFound:
        return {"record": None}
    return {"record": serialization.plain(found)}


def _wait_event(run: Any, place: Place) -> Outcome:
    step = place.step.settings
    patience = step.get("timeout") or PATIENCE
    if "subscription" not in place.spot:
        if event_waits.is_full(run.account_id):
            raise Failed(
                f"At most {event_waits.MOST_AWAITING} instances of an account may wait for events."
            )
        _begin_waiting(run, place)
        place.spot["until"] = _later(run, patience)
        event_waits.subscribe(run, place)
        return Outcome(given=dict(step), waits=True)
    event, personal = event_waits.taken(run, place)
    run.holds_pii = run.holds_pii or personal
    if event is None:
        raise Failed(f"No such event came within {patience}.")
    return Outcome(event, place.step.following)


def _begin_waiting(run: Any, place: Place) -> None:
    place.spot.update(since=serialization.plain(run.now), log=new_id())


def _later(run: Any, duration: str) -> str:
    text: str = serialization.plain(run.now + timedelta(seconds=durations.seconds(duration) or 0))
    return text


STEPS: Mapping[str, Callable[[Any, Place], Outcome]] = {
    ACTION: _action,
    CONDITION: _condition,
    LOOP: _loop,
    PARALLEL: _parallel,
    WAIT_DELAY: _wait_delay,
    WAIT_CONDITION: _wait_condition,
    WAIT_EVENT: _wait_event,
}
