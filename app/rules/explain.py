"""Finds the part of a condition that decided, for authors of rules.

Some of the values may be unknown: those of nodes of the kinds in `Context.unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.rules.evaluate import Context, evaluate, holds
from app.rules.nodes import (
    Caller,
    Comparison,
    Contains,
    IsNull,
    Junction,
    Literal,
    Membership,
    Name,
    Node,
    Not,
    Old,
    Subquery,
    Type,
    subqueries,
    walk,
)
from app.rules.partial_eval import partial_evaluate, truth
from app.rules.values import items


@dataclass(frozen=True)
class Clause:
    """The part that decided, its position in the text, its result, and the values that it read."""

    text: str
    position: int
    holds: bool
    values: dict[str, object]
    subqueries: tuple[Subquery, ...] = ()
    """What it asks of other records."""


def surely(node: Node, context: Context) -> bool | None:
    """Return whether a condition holds; None if that depends on unknown values."""
    if isinstance(node, Junction):
        decisive = node.operator == "or"
        results = [surely(part, context) for part in node.parts]
        if decisive in results:
            return decisive
        return None if None in results else not decisive
    if isinstance(node, Not):
        result = surely(node.part, context)
        return None if result is None else not result
    if _reads_unknown(node, context):
        return truth(partial_evaluate(node, context.subject))
    return holds(node, context)


def undecided(node: Node, context: Context) -> Node:
    """Return the smallest part whose result is unknown and alone decides the condition."""
    if isinstance(node, Not) and isinstance(node.part, Junction | Not):
        return undecided(node.part, context)
    if isinstance(node, Junction):
        unknown = [part for part in node.parts if surely(part, context) is None]
        if len(unknown) == 1:
            return undecided(unknown[0], context)
    return node


def deciding(node: Node, text: str, context: Context) -> Clause:
    """Return the smallest part whose result alone decided that of the condition."""
    chosen = _decisive(node, context)
    values: dict[str, object] = {}
    for part in _operands(chosen):
        if isinstance(part, Name) and part.many:
            path, rest = (".".join(one) for one in (part.path[: part.many], part.path[part.many :]))
            entries: Any = context.record.get(f"{path}.*") or ()
            whole = Name(0, 0, part.path)
            values[_label(part, text)] = (
                [entry.get(rest) for entry in entries] if rest else items(evaluate(whole, context))
            )
        elif not _reads_unknown(part, context):
            value = evaluate(part, context)
            is_list = part.type is Type.LIST and value is not None
            values[_label(part, text)] = items(value) if is_list else value
    source = text[chosen.start : chosen.end]
    result = surely(chosen, context) is True
    return Clause(source, chosen.start, result, values, tuple(subqueries(chosen)))


def _decisive(node: Node, context: Context) -> Node:
    if isinstance(node, Not) and isinstance(node.part, Junction | Not):
        return _decisive(node.part, context)
    if not isinstance(node, Junction):
        return node
    # One true part decides an OR, one false part an AND; otherwise all parts together.
    wanted = node.operator == "or"
    for part in node.parts:
        if surely(part, context) is wanted:
            return _decisive(part, context)
    return node


def _reads_unknown(node: Node, context: Context) -> bool:
    return any(isinstance(part, context.unknown) for part in walk(node))


def _label(node: Node, text: str) -> str:
    # The parts of a function or a computed field have its position, so its text is not theirs.
    if isinstance(node, Name):
        return ".".join(node.path)
    if isinstance(node, Old):
        return ".".join(("@old", *node.path))
    if isinstance(node, Caller):
        return node.written
    return text[node.start : node.end]


def _operands(node: Node) -> Iterator[Node]:
    """Yield what a condition's tests are about: their operands, and fields, but no literals."""
    if isinstance(node, Name | Old | Subquery):
        yield node
        return
    for part in node.children:
        if isinstance(part, Literal):
            continue
        if isinstance(node, Comparison | Contains | Membership | IsNull):
            yield part
        else:
            yield from _operands(part)
