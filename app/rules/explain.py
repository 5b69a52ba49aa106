"""Which part of a condition decided, for those who write rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.rules.evaluate import Context, evaluate, holds
from app.rules.nodes import (
    Caller,
    Comparison,
    IsNull,
    Junction,
    Literal,
    Membership,
    Name,
    Node,
    Not,
)


@dataclass(frozen=True)
class Clause:
    """The part that decided, where it stands, what it gave, and the values it looked at."""

    text: str
    position: int
    holds: bool
    values: dict[str, Any]


def deciding(node: Node, text: str, context: Context) -> Clause:
    """The smallest part of a condition whose truth alone makes that of the whole."""
    chosen = _decisive(node, context)
    looked_at = {_label(part, text): evaluate(part, context) for part in _operands(chosen)}
    source = text[chosen.start : chosen.end]
    return Clause(source, chosen.start, holds(chosen, context), looked_at)


def _decisive(node: Node, context: Context) -> Node:
    if isinstance(node, Not) and isinstance(node.part, Junction | Not):
        return _decisive(node.part, context)
    if not isinstance(node, Junction):
        return node
    # One true part decides an OR, one false part an AND; else all of them do together.
    wanted = node.operator == "or"
    for part in node.parts:
        if holds(part, context) is wanted:
            return _decisive(part, context)
    return node


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
        if isinstance(node, Comparison | Membership | IsNull) and not isinstance(part, Literal):
            yield part
        elif not isinstance(part, Literal):
            yield from _operands(part)
