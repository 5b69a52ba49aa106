"""Which part of a condition decided, for those who write rules.

Also where only some of what it looks at is known: `Context.unknown` names the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    Type,
    walk,
)
from app.rules.partial_eval import partial_evaluate, truth
from app.rules.values import items


@dataclass(frozen=True)
class Clause:
    """The part that decided, where it stands, what it gave, and the values it looked at."""

    text: str
    position: int
    holds: bool
    values: dict[str, object]


def surely(node: Node, context: Context) -> bool | None:
    """Whether a condition holds; None where that hangs on what is not known."""
    if isinstance(node, Junction):
        decisive = node.operator == "or"
        judged = [surely(part, context) for part in node.parts]
        if decisive in judged:
            return decisive
        return None if None in judged else not decisive
    if isinstance(node, Not):
        known = surely(node.part, context)
        return None if known is None else not known
    if _looks_at_unknown(node, context):
        return truth(partial_evaluate(node, context.subject))
    return holds(node, context)


def undecided(node: Node, context: Context) -> Node:
    """The smallest part of a condition that is not known to hold or not, but alone decides."""
    if isinstance(node, Not) and isinstance(node.part, Junction | Not):
        return undecided(node.part, context)
    if isinstance(node, Junction):
        left = [part for part in node.parts if surely(part, context) is None]
        if len(left) == 1:
            return undecided(left[0], context)
    return node


def deciding(node: Node, text: str, context: Context) -> Clause:
    """The smallest part of a condition whose truth alone makes that of the whole."""
    chosen = _decisive(node, context)
    known = (part for part in _operands(chosen) if not _looks_at_unknown(part, context))
    looked_at = {_label(part, text): _value(part, context) for part in known}
    source = text[chosen.start : chosen.end]
    return Clause(source, chosen.start, surely(chosen, context) is True, looked_at)


def _value(node: Node, context: Context) -> object:
    value = evaluate(node, context)
    return items(value) if node.type is Type.LIST and value is not None else value


def _decisive(node: Node, context: Context) -> Node:
    if isinstance(node, Not) and isinstance(node.part, Junction | Not):
        return _decisive(node.part, context)
    if not isinstance(node, Junction):
        return node
    # One true part decides an OR, one false part an AND; else all of them do together.
    wanted = node.operator == "or"
    for part in node.parts:
        if surely(part, context) is wanted:
            return _decisive(part, context)
    return node


def _looks_at_unknown(node: Node, context: Context) -> bool:
    return any(isinstance(part, context.unknown) for part in walk(node))


def _label(node: Node, text: str) -> str:
    # What a function or a computed field stands for has no text of its own.
    if isinstance(node, Name):
        return ".".join(node.path)
    if isinstance(node, Caller):
        return f"@request.auth.{node.attribute}"
    return text[node.start : node.end]


def _operands(node: Node) -> Iterator[Node]:
    if isinstance(node, Name):
        yield node
    for part in node.children:
        if isinstance(node, Comparison | Contains | Membership | IsNull) and not isinstance(
            part, Literal
        ):
            yield part
        elif not isinstance(part, Literal):
            yield from _operands(part)
