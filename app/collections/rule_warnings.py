"""Warnings about rules that are valid: who may write what they compare, and missing indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from app import rules
from app.collections import definitions, indexes
from app.collections.definitions import Definition
from app.errors import NotFound, problem
from app.rules.nodes import Comparison, Contains, Junction, Some
from app.types import JSONObject

UNGUARDED = (
    "A caller may write {}, which is compared with the caller: compare its @old, too, or leave it"
    " out of update_fields."
)
UNINDEXED = "{} reads all records of {} in the account: index {} there."
UNTIED = "{} reads all records of {} in the account: compare an indexed field of it by =."


def of_rule(text: str | None, scope: rules.Scope, *, updates: bool) -> list[JSONObject]:
    """The warnings of a rule that is valid in a scope, with positions; `updates` is of updates."""
    if text is None or not definitions.is_expression(text):
        return []
    node = rules.condition(text, scope)
    unguarded = rules.unguarded(node) if updates else ()
    found = [
        problem(None, "unguarded_field", UNGUARDED.format(name), position=position)
        for name, position in unguarded
        if name in scope.writable
    ]
    return [*found, *_unindexed(node)]


def of_collection(definition: Definition) -> Iterator[JSONObject]:
    """The warnings of a collection's valid rules, by their places."""
    for key in (f"{operation}_rule" for operation in rules.OPERATIONS):
        with suppress(rules.RuleError):
            scope = definition.rule_scope(key)
            for one in of_rule(definition.rules.get(key), scope, updates=key == "update_rule"):
                yield one | {"field": f"{definition.name}.{key}"}


def _unindexed(node: rules.Node) -> Iterator[JSONObject]:
    """A warning for each `@any` and `@count` that no index narrows."""
    for part in rules.walk(node):
        if not isinstance(part, rules.Subquery):
            continue
        with suppress(NotFound):
            target = definitions.get(part.collection)
            whole = part.condition
            every = isinstance(whole, Junction) and whole.operator == "and"
            conditions = whole.parts if isinstance(whole, Junction) and every else (whole,)
            if any(isinstance(one, Some | Contains) for one in conditions):
                continue  # entries of lists have an index
            names = [name for one in conditions for name in _compared(one, part.depth)]
            found = indexes.of_collection(target.schema, target.indexes)
            indexed = {"id", "created_at", *(index.names[0] for index in found)}
            if indexed.isdisjoint(names):
                text = UNINDEXED if names else UNTIED
                values = (f"@{part.function}", target.name, " or ".join(dict.fromkeys(names)))
                yield problem(None, "no_index", text.format(*values), position=part.start)


def _compared(condition: rules.Node, depth: int) -> Iterator[str]:
    """The fields of a subquery's records that an equality compares with something outside."""
    if isinstance(condition, Comparison) and condition.operator == "=":
        sides = (condition.left, condition.right), (condition.right, condition.left)
        for inner, outer in sides:
            is_field = isinstance(inner, rules.Inner) and inner.depth == depth
            looks_inside = any(
                isinstance(one, rules.Inner) and one.depth >= depth for one in rules.walk(outer)
            )
            if isinstance(inner, rules.Inner) and is_field and not looks_inside:
                yield from inner.path[:1] if len(inner.path) == 1 else ()
