"""The operators and functions that expressions are made of."""

from __future__ import annotations

from app.rules import functions
from app.rules.nodes import Arithmetic, Call, Comparison, IsNull, Junction, Membership, Not, walk
from app.rules.parser import parse


def parts_of(text: str) -> set[str]:
    """The names of the operators and functions in an expression."""
    found = set()
    for node in walk(parse(text)):
        if isinstance(node, Call):
            found.add(node.name)
        elif isinstance(node, Arithmetic | Comparison | Junction):
            found.add(node.operator)
        elif isinstance(node, Membership | IsNull):
            found.add(f"{type(node).__name__} {node.negated}")
        elif isinstance(node, Not):
            found.add("not")
    return found


OPERATORS = {*functions.ARITHMETIC, "=", "!=", "<", "<=", ">", ">=", "~", "!~", "and", "or", "not"}
OPERATORS |= {f"{kind} {negated}" for kind in ("Membership", "IsNull") for negated in (True, False)}
EVERYTHING = OPERATORS | {*functions.PLAIN, *functions.SPECIAL, *functions.CALLERS}
