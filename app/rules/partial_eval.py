"""What is left of an expression once it is known who asks: often nothing, which saves the database.

Nothing is left of the functions about the caller, which SQL does not know. The caller's values stay
names, so that one compiled expression serves many callers.
"""

from __future__ import annotations

from dataclasses import replace

from app.rules.evaluate import UNKNOWN, Asker, asked_of, treats_anonymous_as_empty
from app.rules.nodes import (
    Call,
    Caller,
    Comparison,
    IsNull,
    Junction,
    Literal,
    Membership,
    Node,
    Not,
    Now,
    Type,
    map_children,
    walk,
)


def partial_evaluate(node: Node, asker: Asker) -> Node:
    """An expression with the same value for every record, without what only the caller decides."""
    if isinstance(node, Junction):
        return _junction(node, asker)
    node = map_children(node, lambda part: partial_evaluate(part, asker))
    answer = _answer(node, asker)
    return node if answer is None else _known(node, answer)


def truth(node: Node) -> bool | None:
    """Whether a condition always or never holds; None where it depends on the record."""
    if isinstance(node, Literal):
        return node.value is True
    return None


def about_caller(node: Node) -> bool:
    """Whether an expression mentions who asks."""
    return any(
        isinstance(part, Caller) or (isinstance(part, Call) and part.name.startswith("@"))
        for part in walk(node)
    )


def depends_on_time(node: Node) -> bool:
    """Whether an expression's value changes by itself as time goes by."""
    return any(
        isinstance(part, Now) or (isinstance(part, Call) and part.name == "now")
        for part in walk(node)
    )


def _junction(node: Junction, asker: Asker) -> Node:
    decisive = node.operator == "or"
    left: list[Node] = []
    for part in node.parts:
        rest = partial_evaluate(part, asker)
        known = truth(rest)
        if known is decisive:
            return _known(node, decisive)
        if known is None:
            left.append(rest)
    return replace(node, parts=tuple(left)) if left else _known(node, not decisive)


def _answer(node: Node, asker: Asker) -> bool | None:
    """What a condition gives for every record; None where that differs."""
    if isinstance(node, Call) and node.name.startswith("@"):
        return asked_of(node, asker)
    if isinstance(node, Not):
        known = truth(node.part)
        return None if known is None else not known
    if isinstance(node, IsNull) and isinstance(node.value, Caller):
        return _is_missing(node.value, asker) is not node.negated
    if isinstance(node, Membership) and _is_missing(node.value, asker):
        return treats_anonymous_as_empty(node) is not node.negated
    return _compared(node, asker) if isinstance(node, Comparison) else None


def _compared(node: Comparison, asker: Asker) -> bool | None:
    negated = node.operator.startswith("!")
    sides = (node.left, node.right)
    if treats_anonymous_as_empty(node):
        return (asker.id in (None, "")) is not negated
    if any(_is_missing(side, asker) for side in sides):
        return negated
    caller = next((side for side in sides if isinstance(side, Caller)), None)
    literal = next((side for side in sides if isinstance(side, Literal)), None)
    value = getattr(asker, caller.attribute) if caller else UNKNOWN
    if literal and value is not UNKNOWN and node.operator in ("=", "!="):
        return (value == literal.value) is not negated
    return None


def _is_missing(node: Node, asker: Asker) -> bool:
    return isinstance(node, Caller) and getattr(asker, node.attribute) is None


def _known(node: Node, value: bool) -> Literal:
    return Literal(node.start, node.end, value, type=Type.BOOLEAN)
