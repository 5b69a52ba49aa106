"""Bounds the cost of an expression for one record, before it runs.

Neither database can be interrupted within a row. Texts have up to a million characters: `concat`
copies them, and `~` compares each position with the characters of its pattern. So both are bounded
in all, those of computed fields included. Texts that were stored before these bounds are read on.
"""

from __future__ import annotations

from app.rules.nodes import (
    Call,
    Comparison,
    Inner,
    Literal,
    Name,
    Node,
    Old,
    RuleError,
    Sent,
    Type,
    walk,
)

MAX_JOINED, MAX_JOINED_IN_ALL = 10, 20
"""Texts in one `concat`, and in all of an expression."""
SHORT = 10_000
"""Characters of a `substring` that count as nothing."""
MAX_PATTERNS = 1000
"""Characters of all patterns without `%`, times the texts that each is compared with."""
MAX_PATTERN = 500
"""Characters of a pattern that is no literal: of a longer one the first count."""

LONG_TYPES = (Type.TEXT, Type.ANY, Type.JSON)

MAX_READ = 25_000_000
"""Characters that functions and `~` read for one filter of a webhook, stream or workflow."""


class OverBudget(Exception):
    """A filter that reads too much of a record to be evaluated."""


class Budget:
    """The characters that one evaluation in Python may still read."""

    def __init__(self) -> None:
        self._left = MAX_READ

    def spend(self, *values: object) -> None:
        """Subtract the length of the texts among the values. Raises OverBudget."""
        self._left -= sum(len(value) for value in values if isinstance(value, str))
        if self._left < 0:
            raise OverBudget


def check(*nodes: Node, times: int = 1) -> None:
    """Check what expressions cost together, at most so many times as much. Raises RuleError."""
    joined = patterns = 0
    all_joined, all_patterns = MAX_JOINED_IN_ALL * times, MAX_PATTERNS * times
    for node in (part for tree in nodes for part in walk(tree)):
        if isinstance(node, Call) and node.name == "concat":
            texts = _texts(node)
            joined += texts
            if texts > MAX_JOINED or joined > all_joined:
                message = (
                    f"concat joins at most {MAX_JOINED} texts, and {all_joined} in all with those"
                    " of computed fields. Shorten some with substring."
                )
                raise RuleError(message, node.start)
        elif isinstance(node, Comparison) and node.operator in ("~", "!~"):
            patterns += _pattern(node.right) * max(1, _texts(node.left))
            if patterns > all_patterns:
                message = (
                    f"Patterns have at most {all_patterns} characters in all; that of a field"
                    f" counts as {MAX_PATTERN}."
                )
                raise RuleError(message, node.start)


def _pattern(node: Node) -> int:
    """The number of characters of a pattern that are compared with each position of a text."""
    if isinstance(node, Literal):
        return len(str(node.value).replace("%", ""))
    return MAX_PATTERN if _texts(node) else 0


def _texts(node: Node) -> int:
    """The number of long texts that the value of an expression may hold."""
    if isinstance(node, Name | Inner | Old | Sent):
        return int(node.type in LONG_TYPES)
    if not isinstance(node, Call) or node.type not in LONG_TYPES:
        return 0
    texts = list(map(_texts, node.arguments))
    if node.name == "concat":
        return sum(texts)
    if node.name == "substring" and len(texts) == 3:
        length = node.arguments[2]
        is_short = isinstance(length, Literal) and (length.value is None or length.value <= SHORT)
        return 0 if is_short else texts[0]
    return max(texts, default=0)
