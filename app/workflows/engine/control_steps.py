"""Runs steps within the worker's transaction, by step type.

Steps on records go through the records service with the rights of the workflow's owner. The change
and the step's log commit together, so they are executed exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from app import clock
from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import definitions, masking
from app.collections.fields import PEOPLE
from app.errors import InvalidValues, NotFound, problem
from app.ids import new_id
from app.records import service as records
from app.records.read import aggregate
from app.records.store.reads import ListQuery
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.workflows.engine import event_waits, for_each
from app.workflows.engine.position import MAX_ERRORS, Place
from app.workflows.language import checks, definition, expressions
from app.workflows.language.definition import (
    ACTION,
    CONDITION,
    CONTINUE,
    FOR_EACH,
    LOOP,
    PARALLEL,
    WAIT_CONDITION,
    WAIT_DELAY,
    WAIT_EVENT,
)

MAX_ITEMS = 1000
# Record data may be as deep as in a request, one level down in a config.
MAX_DEPTH = serialization.MAX_DEPTH + 1
DEFAULT_POLL_INTERVAL, DEFAULT_TIMEOUT = "30s", "7d"
DEFAULT_LIMIT = 100
FOLLOWED = re.compile(r"(\w+)\s*\.")
LOOKED_AT = re.compile(r"@(?:any|count)\s*\(\s*(\w+)")
TYPE_GONE = "No loaded extension has the step type {} (SERVICE_EXTENSIONS)."
OF_STEP = re.compile(r"\{\{\s*steps\.(\w+)\.")
"""The items of a loop that are what a step has read."""
Config = JSONMapping


class Failed(Exception):
    """A step that cannot run; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a step: its output and the next step, or that it waits or was entered."""

    output: object = None
    target: str | None = None
    input: object = None
    waits: bool = False
    entered: bool = False


def run_step(run: Any, place: Place) -> Outcome:
    """Run a step without external effects. Raises Failed, AppError, Stale."""
    if place.step.is_own:
        raise Failed(TYPE_GONE.format(place.step.type))
    return STEPS[place.step.type](run, place)


def summarize_inner(ended: Place) -> object:
    """The output of a finished loop or parallel step."""
    inner = ended.spot["inner"]
    return {"count": len(inner["items"])} if "items" in inner else {"branches": len(inner["spots"])}


def _action(run: Any, place: Place) -> Outcome:
    by, rendering = run.owner(), run.rendering(place)
    config = dict(place.step.config)
    filter_template = config.pop("filter", None)
    run.input = config_values = rendering.config(config)
    if isinstance(filter_template, str):
        config_values["filter"] = rendering.filter(filter_template)
    if serialization.depth(config_values) > MAX_DEPTH:
        raise Failed(f"The rendered templates are nested deeper than {serialization.MAX_DEPTH}.")
    output = run_record_step(place.step.action or "", config_values, by)
    run.holds_pii = run.holds_pii or shows_personal(config_values, by)
    return Outcome(output, place.step.following, config_values)


def _condition(run: Any, place: Place) -> Outcome:
    text = place.step.settings["expression"]
    result = expressions.holds(text, _with_decimals(run, place, text), run.now)
    target = place.step.settings.get("on_true" if result else "on_false")
    return Outcome({"result": result}, target, {"expression": text})


def _loop(run: Any, place: Place) -> Outcome:
    items = run.rendering(place).value(place.step.settings["items"])
    if not isinstance(items, list):
        raise Failed("The items of the loop are not a list.")
    if len(items) > MAX_ITEMS:
        raise Failed(f"A loop may have at most {MAX_ITEMS} items.")
    if run.position.enter(place, items):
        return Outcome(entered=True)
    return Outcome({"count": 0}, place.step.following)


def _for_each(run: Any, place: Place) -> Outcome:
    if "inner" not in place.spot:
        settings = place.step.settings
        rendering = run.rendering(place)
        filter = rendering.filter(settings["filter"]) if settings.get("filter") else None
        values = {
            "collection": rendering.value(settings["collection"]),
            "filter": filter,
            "sort": rendering.value(settings.get("sort")) or for_each.DEFAULT_SORT,
        }
        for name in ("collection", "sort"):
            _config_text(values, name)
        run.input = values
        if definitions.is_view(_config_text(values, "collection")):
            raise Failed(checks.VIEW_NOT_WALKED)
        inner = for_each.start(run, values)
        run.holds_pii = run.holds_pii or shows_personal(values, run.owner())
        if inner is None:
            return Outcome({"count": 0, "failed": 0, "errors": []}, place.step.following, values)
        place.spot["inner"] = inner
    inner = place.spot["inner"]
    ends_at = inner.setdefault("ends_at", clock.iso(run.now + for_each.MAX_DURATION))
    if ends_at <= serialization.plain(run.now):
        raise Failed(for_each.TOO_LONG)
    if for_each.is_out_of_steps(run.account_id):
        raise Failed(for_each.NO_STEPS)
    for_each.read_page(run, place)
    while id := for_each.take_large(run, place):
        message = for_each.TOO_LARGE.format(id, for_each.MAX_RECORD_BYTES)
        if place.step.settings.get("on_error") != CONTINUE:
            raise Failed(message)
        inner["failed"] += 1
        error = {"id": id, "step": place.step.name, "error": message}
        inner["errors"] = [*inner["errors"], error][:MAX_ERRORS]
    if run.position.advance(place.frames):
        return Outcome(entered=True)
    shown = {name: inner[name] for name in ("collection", "filter", "sort")}
    return Outcome(for_each.output(inner), place.step.following, shown)


def _parallel(run: Any, place: Place) -> Outcome:
    run.position.enter(place)
    return Outcome(entered=True)


def _wait_delay(run: Any, place: Place) -> Outcome:
    input = {"duration": place.step.settings["duration"]}
    if "until" in place.spot:
        return Outcome(input, place.step.following)
    _begin_waiting(run, place)
    place.spot["until"] = _later(run, input["duration"])
    return Outcome(input=input, waits=True)


def _wait_condition(run: Any, place: Place) -> Outcome:
    step = place.step.settings
    record = _record_now(run, step["expression"])
    names = _with_decimals(run, place, step["expression"], record)
    if expressions.holds(step["expression"], names, run.now):
        return Outcome({"result": True}, place.step.following, {"expression": step["expression"]})
    input = None
    if "deadline" not in place.spot:
        _begin_waiting(run, place)
        place.spot["deadline"] = _later(run, step.get("timeout") or DEFAULT_TIMEOUT)
        input = {"expression": step["expression"]}
    elif place.spot["deadline"] <= serialization.plain(run.now):
        raise Failed(
            f"The condition did not come true within {step.get('timeout') or DEFAULT_TIMEOUT}."
        )
    following = _later(run, step.get("poll_interval") or DEFAULT_POLL_INTERVAL)
    place.spot["until"] = min(following, place.spot["deadline"])
    return Outcome(input=input, waits=True)


def _with_decimals(
    run: Any, place: Place, text: str, further: JSONMapping = MappingProxyType({})
) -> JSONObject:
    """The names of a condition, with decimals of records to compare."""
    names = {**run.names(place), **further}
    collections: dict[tuple[str, ...], object] = {
        ("steps", one.name): _collection(one) for one in run.version.series.walk()
    }
    collections["trigger",] = expressions.get_path(names, ("trigger", "collection"))
    collections["record",] = collections["trigger",]
    for frame in place.frames[:-1]:
        inner, items = frame.spot.get("inner", {}), frame.step.settings.get("items")
        if "collection" in inner:
            collections["item",] = inner["collection"]
        elif isinstance(items, str) and (source := OF_STEP.match(items)):
            collections["item",] = collections.get(("steps", source[1]))
    known = {path: name for path, name in collections.items() if isinstance(name, str)}
    return {**names, **expressions.exact(text, names, known)}


def _collection(step: definition.Step) -> object:
    return step.config.get("collection") if step.type == ACTION else None


def _record_now(run: Any, expression: str) -> JSONMapping:
    """The current record of the trigger, if the condition names it."""
    if not expressions.names_root(expression, "record"):
        return {}
    trigger = run.context.get("trigger")
    collection = expressions.get_path(trigger, ("collection",))
    id = expressions.get_path(trigger, ("record", "id"))
    # Manual triggers may contain anything under these names.
    if not isinstance(id, str) or not isinstance(collection, str):
        return {"record": None}
    try:
        by = run.owner()
        record = records.get(collection, id, None, by=by)
    except NotFound:
        return {"record": None}
    return {"record": serialization.plain(record)}


def _wait_event(run: Any, place: Place) -> Outcome:
    step = place.step.settings
    timeout = step.get("timeout") or DEFAULT_TIMEOUT
    if "subscription" not in place.spot:
        if event_waits.is_full(run.account_id):
            raise Failed(
                f"At most {event_waits.MAX_AWAITING} instances of an account may wait for events."
            )
        _begin_waiting(run, place)
        place.spot["until"] = _later(run, timeout)
        event_waits.subscribe(run, place)
        return Outcome(input=dict(step), waits=True)
    event, personal = event_waits.take_event(run, place)
    run.holds_pii = run.holds_pii or personal
    if event is None:
        raise Failed(f"No such event came within {timeout}.")
    return Outcome(event, place.step.following)


def _begin_waiting(run: Any, place: Place) -> None:
    place.spot.update(since=serialization.plain(run.now), log=new_id())


def _later(run: Any, duration: str) -> str:
    text: str = serialization.plain(
        run.now + timedelta(seconds=definition.seconds_of(duration) or 0)
    )
    return text


STEPS: Mapping[str, Callable[[Any, Place], Outcome]] = {
    ACTION: _action,
    CONDITION: _condition,
    LOOP: _loop,
    FOR_EACH: _for_each,
    PARALLEL: _parallel,
    WAIT_DELAY: _wait_delay,
    WAIT_CONDITION: _wait_condition,
    WAIT_EVENT: _wait_event,
}


def create_record(config: Config, by: Principal) -> object:
    """Create a record; returns it as the owner sees it."""
    return records.create(_config_text(config, "collection"), _config_fields(config), by=by)


def update_record(config: Config, by: Principal) -> object:
    """Update fields of a record; returns it as the owner sees it."""
    name, id = _config_text(config, "collection"), _config_text(config, "record_id").lower()
    return records.patch(name, id, _config_fields(config), by=by)


def delete_record(config: Config, by: Principal) -> object:
    name, id = _config_text(config, "collection"), _config_text(config, "record_id").lower()
    records.delete(name, id, by=by)
    return {"id": id, "deleted": True}


def query_records(config: Config, by: Principal) -> object:
    """Records that the owner may list, up to a limit."""
    params = {name: [_config_text(config, name)] for name in ("filter", "sort") if config.get(name)}
    name = _config_text(config, "collection")
    query = ListQuery(parameters=params, limit=_config_limit(config), count=True)
    items, total = records.page(name, query, by=by)
    first = items[0] if items else None
    return {"records": items, "first": first, "count": len(items), "total": total}


def aggregate_records(config: Config, by: Principal) -> object:
    """Counts, sums and extremes of the records that the owner may list, in up to `limit` groups."""
    params = {"filter": [_config_text(config, "filter")]} if config.get("filter") else {}
    for name in (name for name in ("functions", "group_by") if config.get(name)):
        value = config[name]
        texts = value if isinstance(value, list) else [value]
        params[name] = [",".join(_config_text({name: text}, name) for text in texts)]
    name, limit = _config_text(config, "collection"), _config_limit(config)
    found = aggregate.aggregate(name, params, skip=0, limit=limit, by=by)
    results = [_reachable(group) for group in found["results"]]
    return {**found, "results": results, "first": results[0] if results else None}


def _reachable(group: JSONMapping) -> JSONObject:
    """A group by names that templates reach: `customer.name` is `customer_name`, as in views.

    A field of the records themselves keeps its name before it.
    """
    own = {name: value for name, value in group.items() if "." not in name}
    return {name.replace(".", "_"): value for name, value in group.items()} | own


RECORDS: Mapping[str, Callable[[Config, Principal], object]] = {
    "create_record": create_record,
    "update_record": update_record,
    "delete_record": delete_record,
    "query_records": query_records,
    "aggregate_records": aggregate_records,
}


def run_record_step(kind: str, config: Config, by: Principal) -> object:
    """Run an action on records, and return its output. Raises AppError."""
    with reads.by_path("workflow"):
        return serialization.plain(RECORDS[kind](config, by))


def shows_personal(config: Config, by: Principal) -> bool:
    """Whether the owner sees personal data unmasked, of records or of those they refer to."""
    if masking.masks_for(by):
        return False
    text = " ".join(str(config.get(name)) for name in ("filter", "sort", "group_by"))
    steps = set(FOLLOWED.findall(text))
    reached = [_config_text(config, "collection"), *LOOKED_AT.findall(text)]
    for name in reached:  # grows on the way
        try:
            collection = definitions.get(name)
        except NotFound:  # named in a text in quotes
            continue
        if collection.personal:
            return True
        targets = {collection.references.get(step) for step in steps} - {None, PEOPLE, *reached}
        reached += [one for one in targets if one]
    return False


def _config_limit(config: Config) -> int:
    limit = config.get("limit")
    limit = DEFAULT_LIMIT if limit is None else limit
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= DEFAULT_LIMIT:
        message = f"Enter a number from 1 to {DEFAULT_LIMIT}."
        raise InvalidValues([problem("limit", "number_out_of_range", message)])
    return limit


def _config_text(config: Config, name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value:
        message = "The template did not return text."
        raise InvalidValues([problem(name, "invalid_type", message)])
    return value


def _config_fields(config: Config) -> JSONObject:
    value = config.get("data")
    if not isinstance(value, dict):
        message = "The template did not return an object."
        raise InvalidValues([problem("data", "invalid_type", message)])
    return value
