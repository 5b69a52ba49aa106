"""Which types go together: what is read as what, and the words to say that something is not.

Texts of dates and moments become what they name, and a date the moment at which it begins, where
the other side needs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from app.rules import values
from app.rules.nodes import Call, Literal, Node, RuleError, Type

DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TEMPORAL = (Type.DATE, Type.DATETIME)
ORDERED = (Type.NUMBER, Type.DECIMAL, Type.TEXT, *TEMPORAL)
OPAQUE = (Type.JSON, Type.LIST)
WORDS = {
    Type.TEXT: "a text",
    Type.NUMBER: "a number",
    Type.DECIMAL: "a decimal",
    Type.BOOLEAN: "a condition",
    Type.DATETIME: "a moment",
    Type.DATE: "a date",
    Type.JSON: "JSON",
    Type.LIST: "a multi_select",
    Type.NULL: "null",
    Type.ANY: "any value",
}


def expect(node: Node, wanted: Type) -> Node:
    """The node, of a type; what can be read as it becomes it. Raises RuleError."""
    if wanted is Type.ANY or node.type in (wanted, Type.ANY, Type.NULL):
        return node
    if wanted in TEMPORAL:
        node = _temporal(node)
        if wanted is Type.DATETIME:
            node = _instant(node)
    if wanted is Type.DECIMAL:
        node = _exact(node)
    if node.type is wanted:
        return node
    raise RuleError(f"Expected {WORDS[wanted]}, found {WORDS[node.type]}.", node.start)


def united(nodes: list[Node]) -> tuple[list[Node], Type]:
    """The nodes as one type, and which it is. Raises RuleError."""
    kinds = {node.type for node in nodes} - {Type.NULL}
    if Type.ANY in kinds or not kinds:
        return nodes, Type.ANY if kinds else Type.NULL
    for kind in kinds.intersection(OPAQUE):
        raise RuleError(f"{_capital(kind)} has no place here.", nodes[0].start)
    if kinds & set(TEMPORAL):
        nodes = _temporals(nodes)
    if Type.DECIMAL in kinds:
        return [expect(node, Type.DECIMAL) for node in nodes], Type.DECIMAL
    first = next(node.type for node in nodes if node.type is not Type.NULL)
    return [expect(node, first) for node in nodes], first


def alike(left: Node, right: Node) -> tuple[Node, Node]:
    """Both sides of a comparison as one type. Raises RuleError."""
    for side in (left, right):
        if side.type in OPAQUE:
            hint = " Use @contains." if side.type is Type.LIST else ""
            message = f"{_capital(side.type)} can only be compared with null.{hint}"
            raise RuleError(message, side.start)
    if left.type in (Type.ANY, Type.NULL):
        return left, right
    if left.type in TEMPORAL or right.type in TEMPORAL:
        left, right = _temporals([left, right])
    if right.type is Type.DECIMAL:
        left = expect(left, Type.DECIMAL)
    return left, expect(right, left.type)


def _capital(kind: Type) -> str:
    return WORDS[kind][0].upper() + WORDS[kind][1:]


def check_ordered(node: Node) -> None:
    """Refuse what has no order. Raises RuleError."""
    if node.type not in (*ORDERED, Type.ANY):
        raise RuleError(f"Expected what has an order, found {WORDS[node.type]}.", node.start)


def _exact(node: Node) -> Node:
    """A number, or a text that is written out, as a decimal."""
    if isinstance(node, Literal) and node.type in (Type.NUMBER, Type.TEXT):
        value = values.as_decimal(node.value) if node.exact is None else node.exact
        if value is None:
            raise RuleError("Expected a decimal such as '12.50'.", node.start)
        return replace(node, value=value, exact=None, type=Type.DECIMAL)
    if node.type is not Type.NUMBER:
        return node
    return Call(node.start, node.end, "decimal", (node,), type=Type.DECIMAL)


def _temporals(nodes: Sequence[Node]) -> list[Node]:
    """Dates and moments, and the texts of them; as moments, unless all are dates."""
    read = [_temporal(node) for node in nodes]
    for node in read:
        expect(node, Type.DATETIME)
    if {node.type for node in read} <= {Type.DATE, Type.NULL, Type.ANY}:
        return read
    return [_instant(node) for node in read]


def _temporal(node: Node) -> Node:
    """The date or the moment that a text names, where it is one that is written out."""
    if not isinstance(node, Literal) or node.type is not Type.TEXT:
        return node
    try:
        if DAY.fullmatch(node.value):
            return replace(node, value=date.fromisoformat(node.value), type=Type.DATE)
        return replace(node, value=values.moment(node.value), type=Type.DATETIME)
    except ValueError:
        message = "Expected a moment such as 2026-11-20T12:00:00Z or a date such as 2026-11-20."
        raise RuleError(message, node.start) from None


def _instant(node: Node) -> Node:
    """A date as the moment at which it begins."""
    if node.type is not Type.DATE:
        return node
    if isinstance(node, Literal):
        return replace(node, value=values.midnight(node.value), type=Type.DATETIME)
    return Call(node.start, node.end, "midnight", (node,), type=Type.DATETIME)
