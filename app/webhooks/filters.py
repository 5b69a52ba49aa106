"""Filters of webhooks: conditions on the record that changed, in the language of rules.

They must parse when they are saved, and are typed only when a record changes: the collection may
come or change later. What cannot be evaluated then lets the change through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app import clock, rules
from app.collections import access
from app.collections.definition import Definition
from app.errors import problem
from app.events import RecordChanged
from app.rules.nodes import Sent

MOST_KEPT = 1000
_nodes: dict[tuple[str, int, str, frozenset[str]], rules.Node | None] = {}


def problems(text: str | None) -> list[dict[str, Any]]:
    """Why a text is no filter; none where every change is to be told."""
    if not text or not text.strip():
        return []
    try:
        node = rules.condition(text, rules.Scope({}, open=True))
        for part in rules.walk(node):
            if isinstance(part, rules.Name) and len(part.path) > 1:
                raise rules.RuleError("A filter follows no references.", part.start)
            if isinstance(part, Sent):
                raise rules.RuleError("A filter knows the record, not what was sent.", part.start)
    except rules.RuleError as error:
        return [problem("filter", "filter_invalid", str(error), position=error.position)]
    return []


def matches(
    text: str | None, event: RecordChanged, record: Mapping[str, Any], hidden: frozenset[str]
) -> bool:
    """Whether a change is to be told, by the record as its webhook may view it.

    What a webhook is not told is no field to its filter, or its deliveries would tell it.
    """
    if not text or not text.strip():
        return True
    node = _node(event.definition, text, hidden)
    if node is None:
        return True
    asker = access.rule_caller(event.by)
    return rules.holds(node, rules.Context(record, asker, now=clock.now()))


def _node(definition: Definition, text: str, hidden: frozenset[str]) -> rules.Node | None:
    key = (definition.id, definition.version, text, hidden)
    if key not in _nodes:
        if len(_nodes) >= MOST_KEPT:
            _nodes.clear()
        fields = {k: v for k, v in definition.scope.fields.items() if k not in hidden}
        computed = {k: v for k, v in definition.computed.items() if k not in hidden}
        scope = rules.Scope(fields, computed)
        try:
            _nodes[key] = rules.condition(text, scope)
        except rules.RuleError:
            _nodes[key] = None
    return _nodes[key]
