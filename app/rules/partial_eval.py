"""Partial evaluation of expressions for a caller; often nothing is left for the database.

Functions about the caller are evaluated completely, as SQL lacks them. The caller's properties stay
parameters, so that one compiled expression serves many callers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from app.rules.evaluate import UNKNOWN, Subject, answer_call, treats_anonymous_as_empty
from app.rules.nodes import (
    PLAN,
    Call,
    Caller,
    Comparison,
    Contains,
    IsNull,
    Junction,
    Literal,
    Membership,
    Node,
    Not,
    Now,
    Some,
    Subquery,
    Type,
    looks_elsewhere,
    map_children,
    walk,
)


def partial_evaluate(node: Node, subject: Subject) -> Node:
    """Simplify an expression by everything that depends only on the caller."""
    if isinstance(node, Junction):
        return _junction(node, subject)
    node = map_children(node, lambda part: partial_evaluate(part, subject))
    answer = _answer(node, subject)
    return node if answer is None else _boolean_literal(node, answer)


def decided_alone(node: Node, own: Collection[str]) -> Node:
    """A condition that holds where the record alone makes another one hold.

    What that asks of other records (`looks_elsewhere`) counts for nothing, whichever way it goes.
    """
    if isinstance(node, Junction):
        return replace(node, parts=tuple(decided_alone(part, own) for part in node.parts))
    return _boolean_literal(node, False) if looks_elsewhere(node, own) else node


def truth(node: Node) -> bool | None:
    """Whether a condition always or never holds; None if it depends on the record."""
    if isinstance(node, Literal):
        return node.value is True
    return None


def depends_on_caller(node: Node) -> bool:
    """Whether an expression depends on the caller."""
    return any(
        isinstance(part, Caller) or (isinstance(part, Call) and part.name.startswith("@"))
        for part in walk(node)
    )


def depends_on_time(node: Node) -> bool:
    """Whether an expression's value changes with time."""
    return any(
        isinstance(part, Now) or (isinstance(part, Call) and part.name == "now")
        for part in walk(node)
    )


def _junction(node: Junction, subject: Subject) -> Node:
    decisive = node.operator == "or"
    remaining: list[Node] = []
    for part in node.parts:
        rest = partial_evaluate(part, subject)
        decided = truth(rest)
        if decided is decisive:
            return _boolean_literal(node, decisive)
        if decided is None:
            remaining.append(rest)
    return (
        replace(node, parts=tuple(remaining)) if remaining else _boolean_literal(node, not decisive)
    )


def _answer(node: Node, subject: Subject) -> bool | None:
    """The result of a condition if it is the same for every record, else None."""
    if isinstance(node, Call) and node.name.startswith("@"):
        return answer_call(node, subject)
    if isinstance(node, Subquery):
        is_never = node.function == "any" and truth(node.condition) is False
        return False if is_never else None
    if isinstance(node, Not):
        decided = truth(node.part)
        return None if decided is None else not decided
    if isinstance(node, Some):
        return False if truth(node.condition) is False else None
    if isinstance(node, Caller):
        value = subject.value(node)
        return value if isinstance(value, bool) else None
    if isinstance(node, IsNull) and isinstance(node.value, Caller):
        may_lack = node.value.is_defined or node.value.attribute == PLAN
        if may_lack and subject.value(node.value) is UNKNOWN:
            return None  # users of a role may have none
        return _is_missing(node.value, subject) is not node.negated
    if isinstance(node, Contains) and _is_missing(node.item, subject):
        return False
    if isinstance(node, Membership) and _is_missing(node.value, subject):
        return treats_anonymous_as_empty(node) is not node.negated
    return _compared(node, subject) if isinstance(node, Comparison) else None


def _compared(node: Comparison, subject: Subject) -> bool | None:
    negated = node.operator.startswith("!")
    sides = (node.left, node.right)
    if treats_anonymous_as_empty(node):
        return (subject.id in (None, "")) is not negated
    if any(_is_missing(side, subject) for side in sides):
        return negated
    caller = next((side for side in sides if isinstance(side, Caller)), None)
    literal = next((side for side in sides if isinstance(side, Literal)), None)
    value = subject.value(caller) if caller else UNKNOWN
    if literal and value is not UNKNOWN and node.operator in ("=", "!="):
        equal = type(value) is type(literal.value) and value == literal.value
        return equal is not negated
    return None


def _is_missing(node: Node, subject: Subject) -> bool:
    return isinstance(node, Caller) and subject.value(node) is None


def _boolean_literal(node: Node, value: bool) -> Literal:
    return Literal(node.start, node.end, value, type=Type.BOOLEAN)
