"""Workflow expressions: the rule language over an instance's data.

Root names are `trigger`, `steps`, `now`, and within a loop `item` and `index`. Conditions on
events also have `event`, `record` and `previous`; any other name is a field of the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType

from app import rules
from app.accounts.attributes import SEEN_BY_ADMINS
from app.collections import definitions
from app.errors import NotFound
from app.rules import cost, values
from app.rules.nodes import OF_ACCOUNT, OF_USER, Caller, Sent
from app.types import JSONMapping, JSONObject

MAX_PATH_LENGTH = 12
AGGREGATED = re.compile("^(sum|avg|min|max)_")
GLOBAL_NAMES = frozenset({"trigger", "steps", "now"})
LOOP_NAMES = frozenset({"item", "index"})
RECORDS = ("record", "previous")
ROOTS = ("event", "trigger", *RECORDS)
"""The names that lead to the record of an event."""
_VALUES = rules.Scope({}, open=True, furthest=MAX_PATH_LENGTH, caller=False, is_stored=True)
FILTERS = rules.Scope({}, open=True, related=lambda name: rules.ANYTHING)
"""The scope of filters of records, which are checked against their collection when they run."""
_EVENTS = rules.Scope({}, open=True, furthest=MAX_PATH_LENGTH, old=True, is_stored=True)


@dataclass(frozen=True)
class AvailableNames:
    """The names that expressions may use at a place of a definition."""

    steps: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    """Further root names."""
    of_event: bool = False
    """Whether it is a condition on an event, where any name may be a field of its record."""

    def wrong(self, path: tuple[str, ...]) -> str | None:
        """The error message for an unknown name, if any."""
        if path[0] == "steps" and len(path) > 1:
            return None if path[1] in self.steps else f"No step {path[1][:63]}."
        if self.of_event or path[0] in GLOBAL_NAMES | self.extra:
            return None
        available = ", ".join(sorted(GLOBAL_NAMES | self.extra))
        return f"Unknown name {path[0][:63]}. Available names: {available}."


@lru_cache(maxsize=2000)
def condition(text: str, on_event: bool = False) -> rules.Node:
    """Parse a condition. Raises RuleError."""
    return _without_body(rules.condition(text, _EVENTS if on_event else _VALUES))


@lru_cache(maxsize=2000)
def value(text: str) -> rules.Node:
    """Parse an expression. Raises RuleError."""
    return _without_body(rules.value(text, _VALUES))


def check(node: rules.Node, available: AvailableNames) -> None:
    """Refuse unknown names, and what would cost too much. Raises RuleError."""
    cost.check(node)
    for part in rules.walk(node):
        if isinstance(part, rules.Name) and (message := available.wrong(part.path)):
            raise rules.RuleError(message, part.start)
        if isinstance(part, Caller) and part.is_defined:
            prefix, _, name = part.attribute.partition(".")
            if name not in SEEN_BY_ADMINS(f"{prefix}."):
                message = f"There is no attribute {name[:63]}: {part.written[:80]}."
                raise rules.RuleError(message, part.start)


def holds(text: str, names: JSONMapping, now: datetime) -> bool:
    """Evaluate a condition."""
    context = rules.Context({**names, "now": now}, now=now)
    return rules.holds(condition(text), context)


def evaluate(text: str, names: JSONMapping, now: datetime) -> object:
    """Evaluate an expression."""
    return rules.evaluate(value(text), rules.Context({**names, "now": now}, now=now))


def holds_for(
    text: str | None,
    event: JSONMapping,
    caller: rules.Subject,
    now: datetime,
    instance_values_: JSONMapping,
    people: JSONMapping = MappingProxyType({}),
) -> bool:
    """Evaluate a condition on an event; `instance_values_` and what it reads of `people` by name.

    It does not hold if it reads too much of a record: nothing is done that nobody checked. Of the
    caller's attributes it reads those that admins see, as of the record what its owner sees.
    """
    if not text:
        return True
    if "attributes" in text:
        seen, of_account = SEEN_BY_ADMINS(OF_USER), SEEN_BY_ADMINS(OF_ACCOUNT)
        caller = replace(
            caller,
            attributes={k: v for k, v in caller.attributes.items() if k in seen},
            account_attributes={
                k: v for k, v in caller.account_attributes.items() if k in of_account
            },
        )
    record, previous = event.get("record"), event.get("previous")
    event_names = {
        "event": event,
        "record": record,
        "previous": previous,
        "trigger": event,
        "now": now,
    }
    names = {**(record or previous or {}), **event_names, **instance_values_, **people}
    names[rules.OLD] = previous or {}
    context = rules.Context(names, caller, now=now, budget=rules.Budget())
    try:
        return rules.holds(condition(text, True), context)
    except rules.OverBudget:
        return False


def names_behind_fields(text: str | None) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """The dotted names of an event's condition: whole, the record that each is of, and the rest.

    That is `record` or `previous`; None for a name without either.
    """
    found = list[tuple[str, str | None, tuple[str, ...]]]()
    for part in rules.walk(condition(text, True)) if text else ():
        if isinstance(part, rules.Name) and len(part.path) > 1:
            path = part.path[1:] if part.path[0] in ("event", "trigger") else part.path
            root, rest = (path[0], path[1:]) if path[0] in RECORDS else (None, path)
            found.append((".".join(part.path), root, rest))
    return found


def instance_values(text: str | None, names: JSONMapping) -> JSONObject:
    """The instance's values that an event's condition uses."""
    if not text:
        return {}
    result, instance_names = {}, names.keys() & {"trigger", "steps", *LOOP_NAMES}
    for part in rules.walk(condition(text, True)):
        if isinstance(part, rules.Name) and part.path[0] in instance_names:
            result[".".join(part.path)] = get_path(names, part.path)
    return result


def exact(text: str, names: JSONMapping, collections: Mapping[tuple[str, ...], str]) -> JSONObject:
    """The decimals that a condition names, which are texts in JSON, by their dotted names.

    They are those of records, and of aggregates of these, below the paths of their `collections`.
    """
    found: JSONObject = {}
    for part in rules.walk(condition(text)):
        path = part.path if isinstance(part, rules.Name) else ()
        roots = (collections.get(path[:length]) for length in range(1, len(path)))
        for collection in filter(None, roots):
            number = values.as_decimal(get_path(names, path))
            if number is not None and _is_decimal(collection, path[-1]):
                found[".".join(path)] = number
    return found


def _is_decimal(collection: str, name: str) -> bool:
    try:
        columns = definitions.get_current(collection).columns
    except NotFound:
        return False
    field = columns.get(name) or columns.get(AGGREGATED.sub("", name))
    return field is not None and field.like.rule_type is rules.Type.DECIMAL


def get_path(names: object, path: tuple[str, ...]) -> object:
    """The value at a path; None if there is none. List indexes start at 0."""
    value: object = names
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 10:
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return None
    return value


def _without_body(node: rules.Node) -> rules.Node:
    for part in rules.walk(node):
        if isinstance(part, Sent):
            raise rules.RuleError(
                "@request.data is not available here. Use the trigger instead.", part.start
            )
    return node


def names_root(text: str, root: str) -> bool:
    """Whether a condition uses this root name."""
    names = (part.path for part in rules.walk(condition(text)) if isinstance(part, rules.Name))
    return any(path[0] == root for path in names)
