"""The back end in SQL: a checked tree as an expression of SQLAlchemy, with bound parameters only.

A comparison in SQL is null where a side is, which WHERE, AND, OR and CASE take for false as the
language does. Only where a condition is negated or used as a value it is made two-valued.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from app.rules import program, values
from app.rules.depth import CONDITION, ROOM, SOME, cuts, split_layers
from app.rules.elements import (
    CodePoints,
    Evaluated,
    Expression,
    Joined,
    Like,
    ListContains,
    Matches,
    Midnight,
    Nested,
    Nothing,
    Parameter,
    TruthText,
)
from app.rules.evaluate import Subject
from app.rules.functions import PLAIN
from app.rules.nodes import (
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
    matching_keys,
    walk,
)
from app.rules.parser import ABOUT_CALLER

ARITHMETIC = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}
# What both databases have and mean alike; the rest are functions of ours, `atrium_<name>`.
NATIVE = ("length",)
NULL: Expression = sa.null()
FunctionFactory = Callable[..., Expression]
MAX_ARGUMENTS = 64  # some builds of SQLite take no more than 100


class Columns(Protocol):
    """The source of the values of names."""

    types: Mapping[Type, Any]
    """The column type of each value type."""

    def column(self, path: tuple[str, ...]) -> Expression:
        """The expression that a name stands for."""
        ...

    @property
    def old(self) -> Columns:
        """The source of the values before a change; itself where nothing changes."""
        ...

    def now(self) -> Expression:
        """The moment of the evaluation."""
        ...

    def entries(self, node: Some) -> Entries:
        """The entries of the list that a condition is about."""
        ...

    def related(self, collection: str) -> Related:
        """The records of another collection, in the account of this one's."""
        ...


class Related(NamedTuple):
    """What a subquery looks at."""

    columns: Columns
    source: Any
    conditions: Sequence[Expression]
    """That they are of the record's account, and may be looked at."""
    apart: tuple[Expression, Sequence[Expression]] | None = None
    """The same of the record and of them, without a look at both; None if no account is given."""


ACCOUNT: Any = sa.bindparam("_account", None, type_=sa.Text())
"""The account of all records that a statement is about."""


class Entries(Columns, Protocol):
    """The entries of a list of references."""

    def exists(self, condition: Expression) -> Expression:
        """Whether there is one that meets a condition, built of these columns."""
        ...


class Callers(Protocol):
    """Many callers at once, as columns of a statement."""

    def attribute(self, name: str) -> Expression:
        """The column of `@request.auth.<name>`."""
        ...

    def defined(self, node: Caller) -> Expression:
        """The value of an attribute that the operator defines."""
        ...

    def evaluate_call(self, node: Call) -> Expression: ...


@dataclass(frozen=True)
class Compiled:
    """A condition or value as SQL, and the fields of the request body that it uses."""

    expression: Expression
    sent: tuple[str, ...] = ()
    defined: tuple[Caller, ...] = ()
    """The attributes that it uses."""

    def parameters(
        self,
        subject: Subject,
        sent: Mapping[str, object] | None = None,
        account_id: str | None = None,
    ) -> dict[str, object]:
        """The bind parameters of the expression; `account_id` is that of `ACCOUNT`."""
        caller_values = {f"_caller_{name}": getattr(subject, name) for name in ABOUT_CALLER}
        caller_values |= {_parameter_name(one): subject.value(one) for one in self.defined}
        sent_values = {f"_sent_{name}": (sent or {}).get(name) for name in self.sent}
        return {**caller_values, **sent_values, ACCOUNT.key: account_id}


def condition(
    node: Node, columns: Columns, callers: Callers | None = None, room: int = ROOM
) -> Compiled:
    """Compile a checked condition for WHERE; caller properties are parameters or columns."""
    return compiled(_builder(node, columns, callers, room).condition(node), walk(node))


def value(node: Node, columns: Columns, room: int = ROOM) -> Compiled:
    """Compile a checked expression as a column; conditions become true or false."""
    return compiled(_builder(node, columns, None, room, Nothing()).value(node), walk(node))


def _builder(
    node: Node, columns: Columns, callers: Callers | None, room: int, nothing: Expression = NULL
) -> _Builder:
    return _Builder(columns, callers, {}, nothing).with_room(node, room)


def compiled(expression: Expression, parts: Iterable[Node]) -> Compiled:
    """What an expression over these parts asks of the caller and the body."""
    parts = list(parts)
    sent = sorted({part.field for part in parts if isinstance(part, Sent)})
    callers = [part for part in parts if isinstance(part, Caller) and part.is_defined]
    defined = {part.attribute: part for part in callers}
    return Compiled(expression, tuple(sent), tuple(defined.values()))


def _parameter_name(node: Caller) -> str:
    return f"_caller_{node.attribute.replace('.', '_')}"


class _Builder:
    def __init__(
        self,
        columns: Columns,
        callers: Callers | None,
        known: dict[int, Expression],
        nothing: Expression,
        inner: tuple[Columns, ...] = (),
    ) -> None:
        self.columns = columns
        self.callers = callers
        self.known = known  # by the ids of their nodes
        self.nothing = nothing
        self.types = columns.types
        self.inner = inner  # of the subqueries around

    def with_room(self, node: Node, room: int) -> _Builder:
        """The builder for a tree whose SQL takes at most `room` symbols."""
        evaluated = {id(part): self.evaluated(part) for part in cuts(node, room)}
        return _Builder(self.columns, self.callers, evaluated, self.nothing, self.inner)

    def condition(self, node: Node) -> Expression:
        """A boolean expression in which null stands for false."""
        return self.known[id(node)] if id(node) in self.known else BUILD[type(node)](self, node)

    def evaluated(self, node: Node) -> Expression:
        """An expression that is SQL on PostgreSQL and a program on SQLite."""
        text, leaves = program.serialize(node)
        leaf_values = [
            sa.func.atrium_values(*map(self.value, group))
            for group in program.groups(leaves, MAX_ARGUMENTS)
        ]
        serialized = sa.literal(text, sa.Text())
        return Evaluated(self.nested(node), serialized, *leaf_values, type_=self.types[node.type])

    def nested(self, node: Node) -> Nested:
        """The expression in layers, as SQLAlchemy limits the depth."""
        layered = _Builder(self.columns, self.callers, {}, self.nothing, self.inner)
        layers: list[Expression] = []
        for part in split_layers(node):
            layers.append(layered.condition(part))
            layered.known[id(part)] = Nested.layer(len(layers) - 1, self.types[part.type])
        return Nested(*layers)

    def value(self, node: Node) -> Expression:
        """The expression of a value; conditions are never null."""
        built = self.condition(node)
        never_null = isinstance(
            node, Changed | Comparison | Contains | Membership | Junction | Some | Subquery
        )
        is_condition = never_null and node.type is not Type.NUMBER
        return built.is_(sa.true()) if is_condition else built

    def literal(self, node: Literal) -> Expression:
        if node.value is None:
            return sa.null()
        return sa.literal(node.value, self.types[node.type])

    def name(self, node: Name) -> Expression:
        return self.columns.column(node.path)

    def old_name(self, node: Old) -> Expression:
        return self.columns.old.column(node.path)

    def changed(self, node: Changed) -> Expression:
        return self.value(node.left).is_distinct_from(self.value(node.right))

    def inner_name(self, node: Inner) -> Expression:
        return self.inner[node.depth - 1].column(node.path)

    def subquery(self, node: Subquery) -> Expression:
        """EXISTS or a count; every level repeats that the account is the record's."""
        related = self.columns.related(node.collection)
        inner = (*self.inner[: node.depth - 1], related.columns)
        builder = _Builder(self.columns, self.callers, {}, NULL, inner)
        builder = builder.with_room(node.condition, CONDITION[node.depth])
        is_whole = id(node.condition) not in builder.known  # too deep for SQL as it stands
        if node.function == "any" and related.apart and is_whole and (keys := matching_keys(node)):
            # A list that is read once, by which an index of the judged records is searched:
            # SQLite would look for each record.
            within, conditions = related.apart
            listed = sa.select(builder.value(keys.inner)).select_from(related.source)
            listed = listed.where(*conditions, *map(builder.condition, keys.rest))
            return sa.and_(within, self.value(keys.outer).in_(listed))
        counts = node.function == "count"
        query = sa.select(sa.func.count() if counts else sa.literal_column("1"))
        query = query.select_from(related.source).correlate_except(related.source)
        query = query.where(*related.conditions, builder.condition(node.condition))
        return self.cast(query.scalar_subquery(), node) if counts else query.exists()

    def caller(self, node: Caller) -> Expression:
        if node.is_defined:
            if self.callers:
                return self.callers.defined(node)
            return self.parameter(_parameter_name(node), node.type)
        if self.callers:
            return self.callers.attribute(node.attribute)
        return self.parameter(f"_caller_{node.attribute}", ABOUT_CALLER[node.attribute])

    def sent(self, node: Sent) -> Expression:
        return self.parameter(f"_sent_{node.field}", node.type)

    def parameter(self, name: str, kind: Type) -> Expression:
        """A typed parameter of the request, also for null."""
        bound = sa.bindparam(name, None, type_=self.types[kind])
        return Parameter(bound, type_=self.types[kind])

    def now(self, node: Now) -> Expression:
        return self.columns.now()

    def arithmetic(self, node: Arithmetic) -> Expression:
        name = ARITHMETIC[node.operator]
        of_type = f"decimal_{name}" if node.type is Type.DECIMAL else name
        return self.ours(of_type, node.type, node.left, node.right)

    def ours(self, name: str, result: Type, *arguments: Node) -> Expression:
        """Call one of our own database functions."""
        function: FunctionFactory = getattr(sa.func, f"atrium_{name}")
        return function(*map(self.value, arguments), type_=self.types[result])

    def comparison(self, node: Comparison) -> Expression:
        left, right = self.value(node.left), self.value(node.right)
        built = self.compared(node, left, right)
        return built.is_not(sa.true()) if node.operator.startswith("!") else built

    def compared(self, node: Comparison, left: Expression, right: Expression) -> Expression:
        operator = node.operator.lstrip("!")
        if operator == "~":
            if isinstance(node.right, Literal):
                return Like(left, sa.literal(_like(node.right.value)))
            return Matches(left, right)
        if operator == "=":
            return left == right
        if node.left.type is Type.TEXT:
            left = CodePoints(left)
        return left.bool_op(operator)(right)

    def membership(self, node: Membership) -> Expression:
        matches: Expression = sa.false()  # for an empty list SQLAlchemy would generate a parameter
        if node.items:
            matches = self.value(node.value).in_([self.value(item) for item in node.items])
        return matches.is_not(sa.true()) if node.negated else matches

    def contains(self, node: Contains) -> Expression:
        return ListContains(self.value(node.container), self.value(node.item))

    def is_null(self, node: IsNull) -> Expression:
        tested = self.value(node.value)
        return tested.is_not(self.nothing) if node.negated else tested.is_(self.nothing)

    def negation(self, node: Not) -> Expression:
        return self.condition(node.part).is_not(sa.true())

    def some(self, node: Some) -> Expression:
        columns, around = self.columns, list(self.inner)
        entries = (around[node.depth - 1] if node.depth else columns).entries(node)
        if node.depth:
            around[node.depth - 1] = entries
        else:
            columns = entries
        inner = _Builder(columns, self.callers, {}, self.nothing, tuple(around))
        return entries.exists(inner.with_room(node.condition, SOME).condition(node.condition))

    def junction(self, node: Junction) -> Expression:
        join = sa.or_ if node.operator == "or" else sa.and_
        return join(*map(self.condition, node.parts))

    def call(self, node: Call) -> Expression:
        if self.callers and node.name.startswith("@"):
            return self.callers.evaluate_call(node)
        if node.name in SPECIAL:
            return SPECIAL[node.name](self, node)
        if node.name in NATIVE:
            function: FunctionFactory = getattr(sa.func, node.name)
            return function(*map(self.value, node.arguments), type_=self.types[node.type])
        missing = len(PLAIN[node.name].parameters) - len(node.arguments)
        absent = [DEFAULTS[node.name]] if missing else []
        name = f"decimal_{node.name}" if node.type is Type.DECIMAL else node.name
        return self.ours(name, node.type, *node.arguments, *absent)

    def concat(self, node: Call) -> Expression:
        return Joined(
            *(sa.func.coalesce(self.written(argument), "") for argument in node.arguments)
        )

    def written(self, node: Node) -> Expression:
        if node.type is Type.NUMBER:
            return self.ours("plain", Type.TEXT, node)
        if node.type is Type.DECIMAL:
            return self.ours("decimal_plain", Type.TEXT, node)
        if node.type is Type.BOOLEAN:
            return TruthText(self.value(node))
        return self.value(node)

    def choice(self, node: Call) -> Expression:
        condition, yes, no = node.arguments
        return self.cast(
            sa.case((self.condition(condition), self.value(yes)), else_=self.value(no)), node
        )

    def coalesce(self, node: Call) -> Expression:
        return self.cast(_first(list(map(self.value, node.arguments))), node)

    def nullif(self, node: Call) -> Expression:
        return self.cast(sa.func.nullif(*map(self.value, node.arguments)), node)

    def decimal(self, node: Call) -> Expression:
        return self.ours("decimal", Type.DECIMAL, *node.arguments)

    def cast(self, expression: Expression, node: Node) -> Expression:
        """Set the type of an expression, which untyped parameters lack."""
        return sa.type_coerce(expression, self.types[node.type])

    def midnight(self, node: Call) -> Expression:
        return Midnight(self.value(node.arguments[0]), type_=self.types[Type.DATETIME])


SPECIAL: Mapping[str, Callable[[_Builder, Call], Expression]] = {
    "concat": _Builder.concat,
    "if": _Builder.choice,
    "coalesce": _Builder.coalesce,
    "nullif": _Builder.nullif,
    "midnight": _Builder.midnight,
    "decimal": _Builder.decimal,
}
DEFAULTS: Mapping[str, Node] = {
    "round": Literal(0, 0, 0, type=Type.NUMBER),
    "substring": Literal(0, 0, 2 * values.FURTHEST, type=Type.NUMBER),
}
BUILD: Mapping[type[Node], Callable[[_Builder, Any], Expression]] = {
    Literal: _Builder.literal,
    Name: _Builder.name,
    Inner: _Builder.inner_name,
    Old: _Builder.old_name,
    Changed: _Builder.changed,
    Subquery: _Builder.subquery,
    Caller: _Builder.caller,
    Sent: _Builder.sent,
    Now: _Builder.now,
    Arithmetic: _Builder.arithmetic,
    Comparison: _Builder.comparison,
    Membership: _Builder.membership,
    Contains: _Builder.contains,
    IsNull: _Builder.is_null,
    Not: _Builder.negation,
    Some: _Builder.some,
    Junction: _Builder.junction,
    Call: _Builder.call,
}


def _first(expressions: Sequence[Expression]) -> Expression:
    if len(expressions) <= MAX_ARGUMENTS:
        return sa.func.coalesce(*expressions) if len(expressions) > 1 else expressions[0]
    return _first([_first(group) for group in program.groups(expressions, MAX_ARGUMENTS)])


def _like(pattern: str) -> str:
    """Convert a pattern to LIKE with `!` as escape."""
    return re.sub(r"\\([\\%])|[!_]", lambda m: f"!{m[1] or m[0]}", values.lower(pattern))
