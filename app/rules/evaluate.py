"""The back end in Python: a checked tree's value for one record.

Null is None. Where the schema is not known (`Type.ANY`) a value of another kind than needed makes a
comparison false and everything else null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from app.rules import values
from app.rules.cost import MAX_PATTERN, Budget
from app.rules.functions import ARITHMETIC, PLAIN
from app.rules.nodes import (
    Arithmetic,
    Call,
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
    Now,
    Sent,
    Type,
)

# Stands for a value of the caller that is there, but differs between those who may ask.
UNKNOWN: Any = object()


LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
UNWRITTEN = (Type.JSON, Type.DATE, Type.DATETIME)  # by `concat`, which takes texts of them only


@dataclass(frozen=True)
class Subject:
    """Whom a rule decides about; without an id, an anonymous caller."""

    id: str | None = None
    email: str | None = None
    role: str | None = None
    account_id: str | None = None
    groups: frozenset[str] = frozenset()
    is_superadmin: bool = False
    mfa: bool = False
    """Whether the session has passed a second factor."""

    def __post_init__(self) -> None:
        """Compose the texts that expressions compare with theirs."""
        for name in ("email", "role"):
            text = getattr(self, name)
            if isinstance(text, str) and not text.isascii():
                object.__setattr__(self, name, values.composed(text))
        if self.groups is not UNKNOWN and not all(map(str.isascii, self.groups)):
            object.__setattr__(self, "groups", frozenset(map(values.composed, self.groups)))


@dataclass(frozen=True)
class Context:
    record: Mapping[str, object] = field(default_factory=dict)
    subject: Subject = Subject()
    sent: Mapping[str, object] = field(default_factory=dict)
    now: datetime = LONG_AGO
    unknown: tuple[type[Node], ...] = ()
    """The kinds of names of whose values nothing is known yet; only `explain` asks."""
    budget: Budget | None = None
    """What the expression may read; None for rules, which decide in any case."""


def evaluate(node: Node, context: Context) -> Any:
    """The value of a checked expression; that of a condition is true or false."""
    return EVALUATE[type(node)](node, context)


def holds(node: Node, context: Context) -> bool:
    """Whether a condition holds; null does not."""
    return evaluate(node, context) is True


def _literal(node: Literal, context: Context) -> object:
    return node.value


def _name(node: Name, context: Context) -> object:
    whole = ".".join(node.path)
    if whole in context.record:  # also where what a reference leads to was read beforehand
        return context.record[whole]
    found: object = context.record
    for step in node.path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _caller(node: Caller, context: Context) -> object:
    return getattr(context.subject, node.attribute)


def _sent(node: Sent, context: Context) -> object:
    return context.sent.get(node.field)


def _now(node: Now, context: Context) -> object:
    return context.now


def _arithmetic(node: Arithmetic, context: Context) -> object:
    left, right = evaluate(node.left, context), evaluate(node.right, context)
    if _kind(left) is not Type.NUMBER or _kind(right) is not Type.NUMBER:
        return None
    return ARITHMETIC[node.operator](left, right)


def _comparison(node: Comparison, context: Context) -> bool:
    left, right = _sides(node, context)
    if node.operator.startswith("!"):
        return not _compared(node.operator[1:], left, right)
    return _compared(node.operator, left, right)


def _sides(node: Comparison, context: Context) -> tuple[object, object]:
    left, right = evaluate(node.left, context), evaluate(node.right, context)
    if node.operator in ("~", "!~") and not isinstance(node.right, Literal):
        right = right[:MAX_PATTERN] if isinstance(right, str) else right
    if context.budget and node.operator in ("~", "!~"):
        context.budget.spend(left)
    if treats_anonymous_as_empty(node):
        left = "" if left is None and isinstance(node.left, Caller) else left
        right = "" if right is None and isinstance(node.right, Caller) else right
    return left, right


def treats_anonymous_as_empty(node: Comparison | Membership) -> bool:
    """Whether this compares `@request.auth.id` with the empty text."""
    if isinstance(node, Membership):
        return _is_id(node.value) and any(map(_is_empty, node.items))
    sides = (node.left, node.right)
    return node.operator in ("=", "!=") and any(map(_is_id, sides)) and any(map(_is_empty, sides))


def _is_id(node: Node) -> bool:
    return isinstance(node, Caller) and node.attribute == "id"


def _is_empty(node: Node) -> bool:
    return isinstance(node, Literal) and node.value == ""


COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "~": values.matches,
}


def _compared(operator: str, left: object, right: object) -> bool:
    kinds = {_kind(left), _kind(right)}
    if kinds == {Type.TEXT, Type.DATETIME}:
        left, right = _as_moment(left), _as_moment(right)
        kinds = {_kind(left), _kind(right)}
    if len(kinds) > 1 or not kinds <= ORDERS.get(operator, COMPARABLE):
        return False
    return bool(COMPARE[operator](left, right))


COMPARABLE = {Type.TEXT, Type.NUMBER, Type.BOOLEAN, Type.DATETIME, Type.DATE}
ORDERS = {"~": {Type.TEXT}} | dict.fromkeys(("<", "<=", ">", ">="), COMPARABLE - {Type.BOOLEAN})


def _kind(value: object) -> Type:
    if isinstance(value, bool):
        return Type.BOOLEAN
    if isinstance(value, int | float):
        return Type.NUMBER
    if isinstance(value, str):
        return Type.TEXT
    if isinstance(value, datetime):
        return Type.DATETIME
    if isinstance(value, date):
        return Type.DATE
    return Type.NULL if value is None else Type.JSON


def _as_moment(value: object) -> object:
    try:
        return values.moment(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _membership(node: Membership, context: Context) -> bool:
    tested = evaluate(node.value, context)
    if tested is None and treats_anonymous_as_empty(node):
        tested = ""
    found = any(_compared("=", tested, evaluate(item, context)) for item in node.items)
    return found is not node.negated


def _contains(node: Contains, context: Context) -> bool:
    container, item = evaluate(node.container, context), evaluate(node.item, context)
    if context.budget:
        context.budget.spend(container)
    return values.contains(container, item)


def _is_null(node: IsNull, context: Context) -> bool:
    return (evaluate(node.value, context) is None) is not node.negated


def _not(node: Not, context: Context) -> bool:
    return not holds(node.part, context)


def _junction(node: Junction, context: Context) -> bool:
    judged = (holds(part, context) for part in node.parts)
    return any(judged) if node.operator == "or" else all(judged)


def _call(node: Call, context: Context) -> object:
    if node.name in CALLS:
        return CALLS[node.name](node, context)
    function = PLAIN[node.name]
    given = [evaluate(argument, context) for argument in node.arguments]
    if context.budget:
        context.budget.spend(*given)
    fitting = []
    for value, wanted in zip(given, function.parameters, strict=False):
        fitting.append(_as_moment(value) if wanted is Type.DATETIME else value)
    kinds = zip(map(_kind, fitting), function.parameters, strict=False)
    return function.python(*fitting) if all(kind is wanted for kind, wanted in kinds) else None


def _concat(node: Call, context: Context) -> str | None:
    given = [evaluate(argument, context) for argument in node.arguments]
    if any(_kind(value) in UNWRITTEN for value in given):
        return None
    if context.budget:
        context.budget.spend(*given)
    return "".join(map(values.written, given))


def _if(node: Call, context: Context) -> object:
    condition, yes, no = node.arguments
    return evaluate(yes if holds(condition, context) else no, context)


def _coalesce(node: Call, context: Context) -> object:
    found = (evaluate(argument, context) for argument in node.arguments)
    return next((value for value in found if value is not None), None)


def _nullif(node: Call, context: Context) -> object:
    value, unwanted = (evaluate(argument, context) for argument in node.arguments)
    return None if _compared("=", value, unwanted) else value


def _midnight(node: Call, context: Context) -> object:
    day = evaluate(node.arguments[0], context)
    return values.midnight(day) if _kind(day) is Type.DATE else _as_moment(day)


def answer_call(node: Call, subject: Subject) -> bool | None:
    """Evaluate a function about the caller; None if unknown."""
    words = {argument.value for argument in node.arguments if isinstance(argument, Literal)}
    if node.name == "@is_superadmin":
        return subject.is_superadmin
    if node.name == "@has_group":
        return None if subject.groups is UNKNOWN else bool(words & subject.groups)
    return subject.role in words


def _call_about_caller(node: Call, context: Context) -> bool:
    return answer_call(node, context.subject) is True


CALLS: Mapping[str, Callable[[Call, Context], object]] = {
    "concat": _concat,
    "if": _if,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "midnight": _midnight,
    "@has_role": _call_about_caller,
    "@has_any_role": _call_about_caller,
    "@has_group": _call_about_caller,
    "@is_superadmin": _call_about_caller,
}
EVALUATE: Mapping[type[Node], Callable[[Any, Context], object]] = {
    Literal: _literal,
    Name: _name,
    Caller: _caller,
    Sent: _sent,
    Now: _now,
    Arithmetic: _arithmetic,
    Comparison: _comparison,
    Membership: _membership,
    Contains: _contains,
    IsNull: _is_null,
    Not: _not,
    Junction: _junction,
    Call: _call,
}
