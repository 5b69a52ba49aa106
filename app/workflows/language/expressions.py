"""Workflow expressions: the rule language over an instance's data.

Root names are `trigger`, `steps`, `now`, and within a loop `item` and `index`. Conditions on
events also have `event`, `record` and `previous`; any other name is a field of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from app import rules
from app.rules.nodes import Sent
from app.types import JSONMapping, JSONObject

FURTHEST = 12
ALWAYS = frozenset({"trigger", "steps", "now"})
IN_LOOPS = frozenset({"item", "index"})
_VALUES = rules.Scope({}, open=True, furthest=FURTHEST, caller=False)
_EVENTS = rules.Scope({}, open=True, furthest=FURTHEST)


@dataclass(frozen=True)
class Known:
    """The names that expressions may use at a place of a definition."""

    steps: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    """Roots beside those that there always are."""
    of_event: bool = False
    """Whether it is about an event, so that any name may be a field of its record."""

    def wrong(self, path: tuple[str, ...]) -> str | None:
        """The error message for an unknown name, if any."""
        if path[0] == "steps" and len(path) > 1:
            return None if path[1] in self.steps else f"No step {path[1][:63]}."
        if self.of_event or path[0] in ALWAYS | self.extra:
            return None
        known = ", ".join(sorted(ALWAYS | self.extra))
        return f"Unknown name {path[0][:63]}. Available names: {known}."


@lru_cache(maxsize=2000)
def condition(text: str, of_event: bool = False) -> rules.Node:
    """Parse a condition. Raises RuleError."""
    return _without_body(rules.condition(text, _EVENTS if of_event else _VALUES))


@lru_cache(maxsize=2000)
def value(text: str) -> rules.Node:
    """Parse an expression. Raises RuleError."""
    return _without_body(rules.value(text, _VALUES))


def check(node: rules.Node, known: Known) -> None:
    """Refuse unknown names. Raises RuleError."""
    for part in rules.walk(node):
        if isinstance(part, rules.Name) and (wrong := known.wrong(part.path)):
            raise rules.RuleError(wrong, part.start)


def holds(text: str, names: JSONMapping, now: datetime) -> bool:
    """Evaluate a condition."""
    context = rules.Context({**names, "now": now}, now=now)
    return rules.holds(condition(text), context)


def evaluated(text: str, names: JSONMapping, now: datetime) -> object:
    """Evaluate an expression."""
    return rules.evaluate(value(text), rules.Context({**names, "now": now}, now=now))


def holds_for(
    text: str | None,
    event: JSONMapping,
    asker: rules.Asker,
    now: datetime,
    known: JSONMapping,
) -> bool:
    """Evaluate a condition on an event; `known` has the instance's values by name or path."""
    if not text:
        return True
    record, previous = event.get("record"), event.get("previous")
    named = {"event": event, "record": record, "previous": previous, "trigger": event, "now": now}
    context = rules.Context({**(record or previous or {}), **named, **known}, asker, now=now)
    return rules.holds(condition(text, True), context)


def of_instance(text: str | None, names: JSONMapping) -> JSONObject:
    """The instance's values that an event's condition uses."""
    if not text:
        return {}
    found, own = {}, names.keys() & {"trigger", "steps", *IN_LOOPS}
    for part in rules.walk(condition(text, True)):
        if isinstance(part, rules.Name) and part.path[0] in own:
            found[".".join(part.path)] = looked_up(names, part.path)
    return found


def looked_up(names: JSONMapping, path: tuple[str, ...]) -> object:
    """The value at a path; None if there is none. List indexes start at 0."""
    found: object = names
    for step in path:
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 10:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found


def _without_body(node: rules.Node) -> rules.Node:
    for part in rules.walk(node):
        if isinstance(part, Sent):
            raise rules.RuleError("There is no request here. Use the trigger instead.", part.start)
    return node


def names_root(text: str, root: str) -> bool:
    """Whether a condition uses this root name."""
    names = (part.path for part in rules.walk(condition(text)) if isinstance(part, rules.Name))
    return any(path[0] == root for path in names)
