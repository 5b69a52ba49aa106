"""The back end in Python: evaluates a checked tree for one record.

Null is None. Where the schema is unknown (`Type.ANY`), a value of the wrong type makes a comparison
false and everything else null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from app.rules import values
from app.rules.cost import MAX_PATTERN, Budget
from app.rules.functions import ARITHMETIC, OF_DECIMALS, PLAIN
from app.rules.nodes import (
    OF_USER,
    Arithmetic,
    Call,
    Caller,
    Changed,
    Comparison,
    Contains,
    Inner,
    IsNull,
    Junction,
    Literal,
    Membership,
    Name,
    Node,
    Not,
    Now,
    Old,
    Sent,
    Some,
    Subquery,
    Type,
    list_of,
)

# A property of the caller that has a value, but not the same for all callers considered.
UNKNOWN: Any = object()

OLD = "@old"
"""The key of a record's values before the change; without it, nothing has changed."""
READ: Mapping[Type, Callable[[Any], object]] = {
    Type.DATE: date.fromisoformat,
    Type.DATETIME: values.moment,
}
"""How values of attributes are read that JSON has as texts."""
LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
NOT_JOINED = (Type.JSON, Type.DATE, Type.DATETIME)  # `concat` takes them as texts only


@dataclass(frozen=True)
class Subject:
    """The caller whom a rule allows or refuses; anonymous without an id."""

    id: str | None = None
    email: str | None = None
    role: str | None = None
    account_id: str | None = None
    groups: frozenset[str] = frozenset()
    is_superadmin: bool = False
    mfa: bool = False
    """Whether the session has passed a second factor."""
    attributes: Mapping[str, object] = field(default_factory=dict, hash=False)
    """The user's, as JSON has them."""
    account_attributes: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Those of the account acted in."""
    plan: str | None = None
    flags: frozenset[str] = frozenset()
    """What the account acted in has by its plan, or beside it."""

    def value(self, node: Caller) -> Any:
        """What an expression reads of the caller; null if there is nothing."""
        if not node.is_defined:
            return getattr(self, node.attribute)
        prefix, _, name = node.attribute.partition(".")
        held = self.attributes if f"{prefix}." == OF_USER else self.account_attributes
        if held is UNKNOWN:
            return UNKNOWN
        value = held.get(name)
        return value if value is None or node.type not in READ else READ[node.type](value)

    def __post_init__(self) -> None:
        """Normalize texts to NFC, as those in expressions are."""
        for name in ("email", "role", "plan"):
            text = getattr(self, name)
            if isinstance(text, str) and not text.isascii():
                object.__setattr__(self, name, values.composed(text))
        if self.groups is not UNKNOWN and not all(map(str.isascii, self.groups)):
            object.__setattr__(self, "groups", frozenset(map(values.composed, self.groups)))


@dataclass(frozen=True)
class Context:
    record: Mapping[Any, object] = field(default_factory=dict)
    """The fields, and what was read with them: of dotted names, and of each Subquery."""
    subject: Subject = Subject()
    sent: Mapping[str, object] = field(default_factory=dict)
    now: datetime = LONG_AGO
    unknown: tuple[type[Node], ...] = ()
    """Kinds of nodes without a value yet, such as fields before the record is read (`explain`)."""
    entries: Mapping[tuple[int, tuple[str, ...]], Mapping[str, object]] = field(
        default_factory=dict
    )
    """The entries that are looked at, by the depth and path of their list."""
    budget: Budget | None = None
    """Limits the characters that are read; None for rules, which have to decide."""
    related: Mapping[str, Sequence[Mapping[str, object]]] | None = None
    """The records of other collections, by their names in small letters."""
    inner: tuple[Mapping[str, object], ...] = ()
    """Those that the `@any` around look at."""


def evaluate(node: Node, context: Context) -> Any:
    """The value of a checked expression; that of a condition is true or false."""
    return EVALUATE[type(node)](node, context)


def holds(node: Node, context: Context) -> bool:
    """Whether a condition holds; null does not."""
    return evaluate(node, context) is True


def _literal(node: Literal, context: Context) -> object:
    return node.value


def _name(node: Name, context: Context) -> object:
    return _of_entry(node, context) if node.many else _at(context.record, node.path)


def _of_entry(node: Name | Inner, context: Context) -> object:
    place = list_of(node)
    return _at(context.entries[place], node.path[node.many :] or ("id",)) if place else None


def _at(record: Mapping[Any, object], path: tuple[str, ...]) -> object:
    whole = ".".join(path)
    if whole in record:  # a dotted name's value may have been read with the record
        return record[whole]
    value: object = record
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _old(node: Old, context: Context) -> object:
    old: Any = context.record.get(OLD, context.record)
    return _at(old, node.path)


def _changed(node: Changed, context: Context) -> bool:
    return bool(evaluate(node.left, context) != evaluate(node.right, context))


def _inner(node: Inner, context: Context) -> object:
    if node.many:
        return _of_entry(node, context)
    return _at(context.inner[node.depth - 1], node.path)


def _subquery(node: Subquery, context: Context) -> object:
    if node in context.record:
        return context.record[node]
    if context.related is None:
        raise LookupError(f"@{node.function}({node.collection}) was not read with the record")
    around = context.inner[: node.depth - 1]
    matches = (
        holds(node.condition, replace(context, inner=(*around, row)))
        for row in context.related.get(node.collection.lower(), ())
    )
    return any(matches) if node.function == "any" else sum(matches)


def _caller(node: Caller, context: Context) -> object:
    return context.subject.value(node)


def _sent(node: Sent, context: Context) -> object:
    return context.sent.get(node.field)


def _now(node: Now, context: Context) -> object:
    return context.now


def _arithmetic(node: Arithmetic, context: Context) -> object:
    left, right = evaluate(node.left, context), evaluate(node.right, context)
    kinds = {_kind(left), _kind(right)}
    if kinds == {Type.NUMBER}:
        return ARITHMETIC[node.operator](left, right)
    if not kinds <= {Type.NUMBER, Type.DECIMAL}:
        return None
    exact: Any = (values.as_decimal(left), values.as_decimal(right))
    return OF_DECIMALS[node.operator](*exact)


def _comparison(node: Comparison, context: Context) -> bool:
    left, right = evaluate(node.left, context), evaluate(node.right, context)
    if node.operator in ("~", "!~"):
        if isinstance(right, str) and not isinstance(node.right, Literal):
            right = right[:MAX_PATTERN]
        if context.budget:
            context.budget.spend(left)
    if treats_anonymous_as_empty(node):
        left = "" if left is None and isinstance(node.left, Caller) else left
        right = "" if right is None and isinstance(node.right, Caller) else right
    if node.operator.startswith("!"):
        return not _compared(node.operator[1:], left, right)
    return _compared(node.operator, left, right)


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
    elif Type.DECIMAL in kinds and len(kinds) > 1:
        left, right = values.as_decimal(left), values.as_decimal(right)
        kinds = {_kind(left), _kind(right)}
    if len(kinds) > 1 or not kinds <= ORDERS.get(operator, COMPARABLE):
        return False
    return bool(COMPARE[operator](left, right))


COMPARABLE = {Type.TEXT, Type.NUMBER, Type.DECIMAL, Type.BOOLEAN, Type.DATETIME, Type.DATE}
ORDERS = {"~": {Type.TEXT}} | dict.fromkeys(("<", "<=", ">", ">="), COMPARABLE - {Type.BOOLEAN})


def _kind(value: object) -> Type:
    if isinstance(value, bool):
        return Type.BOOLEAN
    if isinstance(value, int | float):
        return Type.NUMBER
    if isinstance(value, Decimal):
        return Type.DECIMAL
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


def _some(node: Some, context: Context) -> bool:
    """Of entries, `<path>.*` of the record has the values that the condition reads."""
    record = context.inner[node.depth - 1] if node.depth else context.record
    if node.follows:
        listed: Any = record.get(f"{'.'.join(node.path)}.*") or ()
    else:
        listed = [{"id": id} for id in values.items(_at(record, node.path))]
    place = (node.depth, node.path)
    return any(
        holds(node.condition, replace(context, entries={**context.entries, place: entry}))
        for entry in listed
    )


def _not(node: Not, context: Context) -> bool:
    return not holds(node.part, context)


def _junction(node: Junction, context: Context) -> bool:
    results = (holds(part, context) for part in node.parts)
    return any(results) if node.operator == "or" else all(results)


def _call(node: Call, context: Context) -> object:
    if node.name in CALLS:
        return CALLS[node.name](node, context)
    function = PLAIN[node.name]
    given = [evaluate(argument, context) for argument in node.arguments]
    if context.budget:
        context.budget.spend(*given)
    is_exact = function.decimal is not None and isinstance(given[0], Decimal)
    parameters = (Type.DECIMAL if is_exact else function.parameters[0], *function.parameters[1:])
    python = function.decimal if is_exact and function.decimal else function.python
    arguments = []
    for value, expected in zip(given, parameters, strict=False):
        argument = _as_moment(value) if expected is Type.DATETIME else value
        if _kind(argument) is not expected:
            return None
        arguments.append(argument)
    return python(*arguments)


def _concat(node: Call, context: Context) -> str | None:
    given = [evaluate(argument, context) for argument in node.arguments]
    if any(_kind(value) in NOT_JOINED for value in given):
        return None
    if context.budget:
        context.budget.spend(*given)
    return "".join(map(values.written, given))


def _if(node: Call, context: Context) -> object:
    condition, yes, no = node.arguments
    return evaluate(yes if holds(condition, context) else no, context)


def _coalesce(node: Call, context: Context) -> object:
    given = (evaluate(argument, context) for argument in node.arguments)
    return next((value for value in given if value is not None), None)


def _nullif(node: Call, context: Context) -> object:
    value, unwanted = (evaluate(argument, context) for argument in node.arguments)
    return None if _compared("=", value, unwanted) else value


def _decimal(node: Call, context: Context) -> Decimal | None:
    return values.as_decimal(evaluate(node.arguments[0], context))


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
    if node.name == "@flag":
        return None if subject.flags is UNKNOWN else bool(words & subject.flags)
    return subject.role in words


def _call_about_caller(node: Call, context: Context) -> bool:
    return answer_call(node, context.subject) is True


CALLS: Mapping[str, Callable[[Call, Context], object]] = {
    "concat": _concat,
    "if": _if,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "midnight": _midnight,
    "decimal": _decimal,
    "@has_role": _call_about_caller,
    "@has_any_role": _call_about_caller,
    "@has_group": _call_about_caller,
    "@is_superadmin": _call_about_caller,
    "@flag": _call_about_caller,
}
EVALUATE: Mapping[type[Node], Callable[[Any, Context], object]] = {
    Literal: _literal,
    Name: _name,
    Inner: _inner,
    Old: _old,
    Changed: _changed,
    Subquery: _subquery,
    Caller: _caller,
    Sent: _sent,
    Now: _now,
    Arithmetic: _arithmetic,
    Comparison: _comparison,
    Membership: _membership,
    Contains: _contains,
    IsNull: _is_null,
    Not: _not,
    Some: _some,
    Junction: _junction,
    Call: _call,
}
