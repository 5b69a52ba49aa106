"""Does an expression fit a schema? Says where it does not, and what was expected there.

The result is the same tree with a type on every node, in which nothing is left to be decided later:
texts compared with moments have become moments, computed fields their expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from app.rules import values
from app.rules.functions import CALLERS, PLAIN, SPECIAL
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
    Name,
    Node,
    Not,
    Now,
    RuleError,
    Sent,
    Type,
    rebuilt,
    walk,
)
from app.rules.parser import FURTHEST, parse

# With the expressions of the computed fields that it names.
MOST_NODES = 1000
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TEMPORAL = (Type.DATE, Type.DATETIME)
ORDERED = (Type.NUMBER, Type.TEXT, *TEMPORAL)
WORDS = {
    Type.TEXT: "a text",
    Type.NUMBER: "a number",
    Type.BOOLEAN: "a condition",
    Type.DATETIME: "a moment",
    Type.DATE: "a date",
    Type.JSON: "JSON",
    Type.NULL: "null",
    Type.ANY: "any value",
}


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use."""

    fields: Mapping[str, Type]
    computed: Mapping[str, Node] = field(default_factory=dict)
    """Checked expressions that stand for a name."""
    follow: Callable[[str], Scope | None] = lambda name: None
    """The scope that a reference leads to, where the name is one that may be followed."""
    caller: bool = True
    """Whether `@request` and the functions about the caller may be used."""
    open: bool = False
    """Whether every name is allowed, with a type that only its value tells."""
    furthest: int = FURTHEST
    """How many dots a name has at most."""


def condition(text: str, scope: Scope) -> Node:
    """The checked tree of a rule or filter. Raises RuleError."""
    return _Checker(scope).whole(text, Type.BOOLEAN)


def value(text: str, scope: Scope, wanted: Type = Type.ANY) -> Node:
    """The checked tree of an expression that gives a value of a type. Raises RuleError."""
    return _Checker(scope).whole(text, wanted)


class _Checker:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def whole(self, text: str, wanted: Type) -> Node:
        checked = self.expect(self.check(parse(text, self.scope.furthest)), wanted)
        if sum(1 for _ in walk(checked)) > MOST_NODES:
            raise RuleError("With the computed fields that it names this is too long.", 0)
        return checked

    def check(self, node: Node) -> Node:
        return CHECKS[type(node)](self, node)

    def expect(self, node: Node, wanted: Type) -> Node:
        """The node, of a type; what can be read as it becomes it."""
        if wanted is Type.ANY or node.type in (wanted, Type.ANY, Type.NULL):
            return node
        if wanted in TEMPORAL:
            node = _temporal(node)
            if wanted is Type.DATETIME:
                node = _instant(node)
        if node.type is wanted:
            return node
        raise RuleError(f"Expected {WORDS[wanted]}, found {WORDS[node.type]}.", node.start)

    def literal(self, node: Literal) -> Node:
        return node

    def name(self, node: Name) -> Node:
        scope: Scope = self.scope
        if scope.open:
            return node
        *steps, last = node.path
        for step in steps:
            target = scope.follow(step)
            if target is None:
                known = step in scope.fields
                message = f"{step} is no reference." if known else _no_field(step, scope)
                raise RuleError(message, node.start)
            scope = target
        if last in scope.computed:
            return _rooted(scope.computed[last], tuple(steps), node)
        if last not in scope.fields:
            raise RuleError(_no_field(last, scope), node.start)
        return replace(node, type=scope.fields[last])

    def caller(self, node: Caller) -> Node:
        self._about_caller(node)
        return node

    def sent(self, node: Sent) -> Node:
        self._about_caller(node)
        if self.scope.open:
            return node
        if node.field not in self.scope.fields:
            raise RuleError(_no_field(node.field, self.scope), node.start)
        return replace(node, type=self.scope.fields[node.field])

    def now(self, node: Now) -> Node:
        return node

    def list_of(self, node: ListOf) -> Node:
        raise RuleError("A list stands only after IN, or where a function takes one.", node.start)

    def arithmetic(self, node: Arithmetic) -> Node:
        left = self.expect(self.check(node.left), Type.NUMBER)
        right = self.expect(self.check(node.right), Type.NUMBER)
        return replace(node, left=left, right=right, type=Type.NUMBER)

    def comparison(self, node: Comparison) -> Node:
        left, right = self.check(node.left), self.check(node.right)
        negated = node.operator.startswith("!")
        if Type.NULL in (left.type, right.type):
            if node.operator in ("=", "!="):
                tested = right if left.type is Type.NULL else left
                return _typed(IsNull(node.start, node.end, tested, negated))
            return Literal(node.start, node.end, negated, type=Type.BOOLEAN)
        if node.operator in ("~", "!~"):
            left, right = self.expect(left, Type.TEXT), self.expect(right, Type.TEXT)
        else:
            left, right = self._alike(left, right)
            if node.operator not in ("=", "!="):
                self._ordered(left)
        return _typed(replace(node, left=left, right=right))

    def membership(self, node: Membership) -> Node:
        tested = self.check(node.value)
        items = []
        for item in map(self.check, node.items):
            if item.type is not Type.NULL:
                # The literal null equals nothing; what it is compared with stays as it is.
                tested, like = self._alike(tested, item)
                items.append(like)
        items = [self._alike(tested, item)[1] for item in items]
        return _typed(replace(node, value=tested, items=tuple(items)))

    def is_null(self, node: IsNull) -> Node:
        return _typed(replace(node, value=self.check(node.value)))

    def negation(self, node: Not) -> Node:
        return _typed(replace(node, part=self.expect(self.check(node.part), Type.BOOLEAN)))

    def junction(self, node: Junction) -> Node:
        parts = tuple(self.expect(self.check(part), Type.BOOLEAN) for part in node.parts)
        return _typed(replace(node, parts=parts))

    def call(self, node: Call) -> Node:
        if node.name in CALLERS:
            self._about_caller(node)
            return getattr(self, "_" + node.name[1:])(node)
        if node.name in SPECIAL:
            return getattr(self, "_" + node.name)(node)
        if node.name in PLAIN:
            return self._plain(node)
        names = ", ".join((*CALLERS, *SPECIAL, *PLAIN))
        message = f"There is no function {node.name[:60]}. There are: {names}."
        raise RuleError(message, node.start)

    def _plain(self, node: Call) -> Node:
        function = PLAIN[node.name]
        most = len(function.parameters)
        self._count(node, most - function.optional, most)
        checked = [
            self.expect(self.check(argument), wanted)
            for argument, wanted in zip(node.arguments, function.parameters, strict=False)
        ]
        if function.unit:
            self._unit(checked[-1])
        return replace(node, arguments=tuple(checked), type=function.result)

    def _unit(self, node: Node) -> None:
        if not isinstance(node, Literal) or node.value not in values.UNITS:
            message = f"Expected one of the units {', '.join(values.UNITS)} in quotes."
            raise RuleError(message, node.start)

    def _owns_record(self, node: Call) -> Node:
        self._count(node, 0, 0)
        owner = Name(node.start, node.end, ("created_by",))
        caller = Caller(node.start, node.end, "id", type=Type.TEXT)
        return self.check(Comparison(node.start, node.end, "=", owner, caller))

    def _has_role(self, node: Call) -> Node:
        self._count(node, 1, 1)
        return self._word_call(node, [node.arguments[0]])

    _has_group = _has_role

    def _has_any_role(self, node: Call) -> Node:
        self._count(node, 1, None)
        listed = node.arguments[0] if len(node.arguments) == 1 else None
        return self._word_call(node, listed.items if isinstance(listed, ListOf) else node.arguments)

    def _is_superadmin(self, node: Call) -> Node:
        self._count(node, 0, 0)
        return _typed(node)

    def _word_call(self, node: Call, arguments: Sequence[Node]) -> Node:
        return _typed(replace(node, arguments=tuple(_word(one) for one in arguments)))

    def _concat(self, node: Call) -> Node:
        self._count(node, 1, None)
        checked = [self.check(argument) for argument in node.arguments]
        for one in checked:
            if one.type in (*TEMPORAL, Type.JSON):
                self.expect(one, Type.TEXT)
        return replace(node, arguments=tuple(checked), type=Type.TEXT)

    def _now(self, node: Call) -> Node:
        self._count(node, 0, 0)
        return Now(node.start, node.end, type=Type.DATETIME)

    def _if(self, node: Call) -> Node:
        self._count(node, 3, 3)
        asked, *choices = node.arguments
        return self._chosen(node, choices, self.expect(self.check(asked), Type.BOOLEAN))

    def _coalesce(self, node: Call) -> Node:
        self._count(node, 1, None)
        return self._chosen(node, node.arguments)

    def _nullif(self, node: Call) -> Node:
        self._count(node, 2, 2)
        return self._chosen(node, node.arguments)

    def _chosen(self, node: Call, choices: Sequence[Node], *before: Node) -> Node:
        """A function that gives one of some values, after the arguments that come before them."""
        checked, kind = self._united([self.check(choice) for choice in choices])
        if kind is Type.NULL:
            return Literal(node.start, node.end, None, type=kind)
        return replace(node, arguments=(*before, *checked), type=kind)

    def _united(self, nodes: list[Node]) -> tuple[list[Node], Type]:
        """The nodes as one type, and which it is."""
        kinds = {node.type for node in nodes} - {Type.NULL}
        if Type.ANY in kinds or not kinds:
            return nodes, Type.ANY if kinds else Type.NULL
        if Type.JSON in kinds:
            raise RuleError("JSON has no place here.", nodes[0].start)
        if kinds & set(TEMPORAL):
            nodes = self._temporals(nodes)
        first = next(node.type for node in nodes if node.type is not Type.NULL)
        return [self.expect(node, first) for node in nodes], first

    def _alike(self, left: Node, right: Node) -> tuple[Node, Node]:
        """Both sides of a comparison as one type."""
        for side in (left, right):
            if side.type is Type.JSON:
                raise RuleError("JSON can only be compared with null.", side.start)
        if left.type in (Type.ANY, Type.NULL):
            return left, right
        if left.type in TEMPORAL or right.type in TEMPORAL:
            left, right = self._temporals([left, right])
        return left, self.expect(right, left.type)

    def _temporals(self, nodes: Sequence[Node]) -> list[Node]:
        """Dates and moments, and the texts of them; as moments, unless all are dates."""
        read = [_temporal(node) for node in nodes]
        for node in read:
            self.expect(node, Type.DATETIME)
        if {node.type for node in read} <= {Type.DATE, Type.NULL, Type.ANY}:
            return read
        return [_instant(node) for node in read]

    def _ordered(self, node: Node) -> None:
        if node.type not in (*ORDERED, Type.ANY):
            raise RuleError(f"Expected what has an order, found {WORDS[node.type]}.", node.start)

    def _about_caller(self, node: Node) -> None:
        if not self.scope.caller:
            raise RuleError("Nothing here may depend on who asks.", node.start)

    def _count(self, node: Call, least: int, most: int | None) -> None:
        given = len(node.arguments)
        if given < least or (most is not None and given > most):
            wanted = str(least) if least == most else f"{least} to {most}" if most else f"{least}+"
            message = f"{node.name} takes {wanted} arguments, found {given}."
            raise RuleError(message, node.start)


CHECKS: dict[type[Node], Any] = {
    Literal: _Checker.literal,
    Name: _Checker.name,
    Caller: _Checker.caller,
    Sent: _Checker.sent,
    Now: _Checker.now,
    ListOf: _Checker.list_of,
    Arithmetic: _Checker.arithmetic,
    Comparison: _Checker.comparison,
    Membership: _Checker.membership,
    IsNull: _Checker.is_null,
    Not: _Checker.negation,
    Junction: _Checker.junction,
    Call: _Checker.call,
}


def _typed(node: Node) -> Node:
    return replace(node, type=Type.BOOLEAN)


def _no_field(name: str, scope: Scope) -> str:
    like = next((known for known in scope.fields if known.lower() == name.lower()), None)
    hint = f" Did you mean {like}?" if like else ""
    return f"There is no field {name[:63]}.{hint}"


def _word(node: Node) -> Node:
    """A bare word or a quoted one, as a text."""
    if isinstance(node, Name) and len(node.path) == 1:
        return Literal(node.start, node.end, node.path[0], type=Type.TEXT)
    if isinstance(node, Literal) and node.type is Type.TEXT:
        return node
    raise RuleError("Expected a name, bare or in quotes.", node.start)


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


def _rooted(node: Node, path: tuple[str, ...], place: Node) -> Node:
    """A computed field's expression, seen from where references lead to it from."""
    moved = replace(node, start=place.start, end=place.end)
    if isinstance(moved, Name):
        if len(path) + len(moved.path) > FURTHEST + 1:
            raise RuleError(f"A name follows at most {FURTHEST} references.", place.start)
        moved = replace(moved, path=(*path, *moved.path))
    return rebuilt(moved, lambda part: _rooted(part, path, place))
