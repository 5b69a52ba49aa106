"""Finds conditions that always or never hold, for authors of rules.

A condition never holds if each way to meet it contradicts itself. What is said of one value is read
as a range and a set of texts or numbers; all else is only compared with itself. So what is found is
so, and what is not found may still be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from app.rules.evaluate import Context, holds, treats_anonymous_as_empty
from app.rules.functions import PLAIN
from app.rules.nodes import (
    Arithmetic,
    Call,
    Caller,
    Comparison,
    IsNull,
    Junction,
    ListOf,
    Literal,
    Membership,
    Node,
    Not,
    Some,
    Subquery,
    Type,
    walk,
)

MAX_WAYS = 500  # beyond, nothing is found
OPPOSITES = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
CHOOSING = ("concat", "if", "coalesce", "nullif")
NO_MEANING = ("start", "end", "place", "type")
ORDERED = (Type.TEXT, Type.NUMBER, Type.DECIMAL, Type.DATETIME, Type.DATE)
Key = tuple[object, ...]


@dataclass(frozen=True)
class Fact:
    """What a condition says of a value, or that it says the contrary: of null, only that holds."""

    key: Key
    """The value; the whole condition if it is nothing of the below."""
    operator: str = ""
    """A comparison, `in`, `null`, or empty."""
    value: Any = None
    type: Type = Type.ANY
    negated: bool = False


Way = tuple[Fact, ...]
"""Facts that together meet a condition."""


class _TooMany(Exception):
    """There are more ways to meet a condition than are looked at."""


def verdict(node: Node) -> bool | None:
    """Whether a condition always or never holds; None if that depends, or is not known."""
    for wanted in (True, False):
        try:
            if not any(map(_is_possible, _ways(node, negated=wanted))):
                return wanted
        except _TooMany:
            pass
    return None


def parts(node: Node) -> Iterator[tuple[Node, bool]]:
    """Yield the largest parts of a condition that always or never hold, with which they do."""
    found = verdict(node)
    if found is not None:
        yield node, found
    elif isinstance(node, Junction):
        for part in node.parts:
            yield from parts(part)
    elif isinstance(node, Not):
        yield from parts(node.part)
    elif isinstance(node, Some | Subquery):
        yield from parts(node.condition)


def _ways(node: Node, *, negated: bool = False) -> list[Way]:
    """The ways to meet a condition, or its negation; none if it has no way."""
    if isinstance(node, Not):
        return _ways(node.part, negated=not negated)
    if isinstance(node, Junction):
        each = [_ways(part, negated=negated) for part in node.parts]
        if (node.operator == "or") is not negated:
            return _bounded([way for ways in each for way in ways])
        together: list[Way] = [()]
        for ways in each:
            if len(together) * len(ways) > MAX_WAYS:
                raise _TooMany
            together = [(*one, *other) for one in together for other in ways]
            together = [way for way in together if _is_possible(way)]
        return together
    known = _known(node)
    if known is not None:
        return [()] if known is not negated else []
    return [(_fact(node, negated=negated),)]


def _bounded(ways: list[Way]) -> list[Way]:
    if len(ways) > MAX_WAYS:
        raise _TooMany
    return ways


def _known(node: Node) -> bool | None:
    """The result of a condition that looks at nothing, or for nothing that there can be."""
    if isinstance(node, Some) or (isinstance(node, Subquery) and node.function == "any"):
        return False if verdict(node.condition) is False else None
    if all(map(_is_fixed, walk(node))):
        return holds(node, Context())
    return None


def _is_fixed(part: Node) -> bool:
    """Whether a part of a condition has the same value everywhere, if its own parts have."""
    if isinstance(part, Call):
        return part.name in PLAIN or part.name in CHOOSING
    return isinstance(
        part, Literal | ListOf | Arithmetic | Comparison | Membership | IsNull | Not | Junction
    )


def _fact(node: Node, *, negated: bool) -> Fact:
    """The fact that an indivisible condition, or its negation, is."""
    other = Fact(_key(node), negated=negated)
    if isinstance(node, IsNull):
        return Fact(_key(node.value), "null", negated=node.negated is not negated)
    if isinstance(node, Call) and node.name in ("@has_role", "@has_any_role"):
        words = [one.value for one in _literals(node.arguments)]
        return Fact(_key(Caller(0, 0, "role")), "in", words, Type.TEXT, negated)
    if isinstance(node, Membership):
        literals = list(_literals(node.items))
        if len(literals) < len(node.items) or treats_anonymous_as_empty(node):
            return other
        values = [one.value for one in literals]
        kind = node.value.type
        return Fact(_key(node.value), "in", values, kind, node.negated is not negated)
    if isinstance(node, Comparison):
        return _comparison(node, negated=negated)
    if node.type is Type.BOOLEAN and not isinstance(node, Subquery | Some):
        # A condition that may be null holds where it is true.
        return Fact(_key(node), "=", True, Type.BOOLEAN, negated)
    return other


def _comparison(node: Comparison, *, negated: bool) -> Fact:
    operator, left, right = node.operator.removeprefix("!"), node.left, node.right
    negated = node.operator.startswith("!") is not negated
    if isinstance(left, Literal):
        if operator not in OPPOSITES:
            return Fact((operator, _key(left), _key(right)), negated=negated)
        operator, left, right = OPPOSITES[operator], right, left
    if isinstance(right, Literal) and operator in OPPOSITES and not treats_anonymous_as_empty(node):
        return Fact(_key(left), operator, right.value, left.type, negated)
    sides = [_key(left), _key(right)]
    if operator == "=":  # either way round
        sides.sort(key=repr)
    elif operator in (">", ">="):
        operator, sides = OPPOSITES[operator], sides[::-1]
    return Fact((operator, *sides), negated=negated)


def _literals(nodes: Sequence[Node]) -> Iterator[Literal]:
    for node in nodes:
        if isinstance(node, ListOf):
            yield from _literals(node.items)
        elif isinstance(node, Literal):
            yield node


def _key(node: Node) -> Key:
    """What an expression is, wherever it stands."""
    result: list[object] = [type(node).__name__]
    for one in fields(node):
        if one.name in NO_MEANING:
            continue
        value = getattr(node, one.name)
        if isinstance(value, Node):
            value = _key(value)
        elif isinstance(value, tuple):
            value = tuple(_key(part) if isinstance(part, Node) else part for part in value)
        elif isinstance(node, Literal) and one.name == "value":
            value = (type(value).__name__, value)  # 1 is not true
        result.append(value)
    return tuple(result)


@dataclass
class _Range:
    """What facts leave of the values that are no null."""

    least: Any = None
    most: Any = None
    is_open_below: bool = False
    is_open_above: bool = False
    one_of: set[Any] | None = None
    without: set[Any] = field(default_factory=set)

    def narrow(self, operator: str, value: Any) -> None:
        if operator in ("=", "in"):
            values = set(value) if operator == "in" else {value}
            self.one_of = values if self.one_of is None else self.one_of & values
        elif operator in ("<", "<="):
            if self.most is None or value < self.most:
                self.most, self.is_open_above = value, operator == "<"
            elif value == self.most:
                self.is_open_above |= operator == "<"
        elif operator in (">", ">="):
            if self.least is None or value > self.least:
                self.least, self.is_open_below = value, operator == ">"
            elif value == self.least:
                self.is_open_below |= operator == ">"

    @property
    def is_empty(self) -> bool:
        if self.one_of is not None:
            return not any(map(self._has, self.one_of))
        if self.least is None or self.most is None:
            return False
        return self.least > self.most or (self.least == self.most and not self._has(self.least))

    def _has(self, value: Any) -> bool:
        if value in self.without:
            return False
        least, most = self.least, self.most
        is_less = least is not None and (value < least or (self.is_open_below and value == least))
        is_more = most is not None and (value > most or (self.is_open_above and value == most))
        return not (is_less or is_more)


NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _is_possible(way: Way) -> bool:
    """Whether facts may all hold; false only if they surely cannot."""
    by_key = defaultdict[Key, list[Fact]](list)
    for fact in way:
        by_key[fact.key].append(fact)
    return all(map(_may_hold, by_key.values()))


def _may_hold(facts: Sequence[Fact]) -> bool:
    """Whether what facts say of one value may hold."""
    plain = {fact.negated for fact in facts if not fact.operator}
    if len(plain) > 1:
        return False
    compared = [fact for fact in facts if fact.operator]
    if _null_meets(compared):
        return True
    if any(fact.operator == "null" and not fact.negated for fact in compared):
        return False  # it is null, and something else does not let it be
    return _something_meets([fact for fact in compared if fact.operator != "null"])


def _null_meets(facts: Sequence[Fact]) -> bool:
    """Whether null meets all: no comparison holds of it, and the negation of each does."""
    return all(fact.negated if fact.operator != "null" else not fact.negated for fact in facts)


def _something_meets(facts: Sequence[Fact]) -> bool:
    """Whether a value that is no null may meet all."""
    values = [v for f in facts for v in (f.value if f.operator == "in" else [f.value])]
    kinds = {_kind(value) for value in values}
    kind = facts[0].type if facts else Type.ANY
    # Of values of several types nothing is said, nor of texts that may be read as moments.
    if not facts or len(kinds) > 1 or None in kinds or (kind is Type.ANY and str in kinds):
        return True
    left = _Range()
    for fact in facts:
        if not fact.negated:
            left.narrow(fact.operator, fact.value)
        elif fact.operator in ("=", "in"):
            left.without |= set(fact.value) if fact.operator == "in" else {fact.value}
        elif kind in ORDERED:  # of a value of any type, the contrary says nothing
            left.narrow(NEGATED[fact.operator], fact.value)
    if kind is Type.BOOLEAN:
        left.narrow("in", (True, False))
    return not left.is_empty


def _kind(value: object) -> type | None:
    """The kind of a value, as comparisons know them."""
    for kind in (bool, str, datetime, date):
        if isinstance(value, kind):
            return kind
    return float if isinstance(value, int | float | Decimal) else None
