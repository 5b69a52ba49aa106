"""The tree of an expression. Every node knows where in the text it stands, and its type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypeGuard


class Type(Enum):
    """The type of a value. ANY is known only when the value is there; NULL is the literal alone."""

    TEXT = "text"
    NUMBER = "number"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATETIME = "datetime"
    DATE = "date"
    JSON = "json"
    LIST = "list"
    NULL = "null"
    ANY = "any"


class RuleError(ValueError):
    """Why a text is no expression, and at which character of it (from 0)."""

    def __init__(self, message: str, position: int, code: str = "") -> None:
        super().__init__(message)
        self.position = position
        self.code = code  # if it is a kind of its own


@dataclass(frozen=True)
class Node:
    """A part of an expression: `text[start:end]`."""

    start: int
    end: int
    type: Type = field(default=Type.ANY, kw_only=True)

    @property
    def children(self) -> Iterator[Node]:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Node):
                yield value
            elif isinstance(value, tuple):
                yield from (part for part in value if isinstance(part, Node))


@dataclass(frozen=True)
class Literal(Node):
    """A value that the text writes out."""

    value: Any
    exact: Decimal | None = None
    """The number as it is written, where `value` is only the nearest one."""


@dataclass(frozen=True)
class Name(Node):
    """A field, or with more than one step a field of the record that references lead to."""

    path: tuple[str, ...]
    many: int = 0
    """The steps to a list of references, whose entries the name stands for; 0 without one."""


OF_USER, OF_ACCOUNT = "attributes.", "account."
"""Begin the attributes of callers and accounts that the operator defines."""
PLAN = "plan"
"""The attribute of callers that is the plan of the account acted in: `@account.plan`."""


@dataclass(frozen=True)
class Fragment(Node):
    """`@rule(name)`: a named part of a rule; the check puts its condition in its place."""

    name: str


@dataclass(frozen=True)
class Old(Node):
    """`@old.<name>`: a field of the record as it was before the change."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Changed(Node):
    """`@changed(name)`: whether a field has another value than before; never null."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Inner(Node):
    """A field of a record that `@any` or `@count` looks at; `depth` says of which, from 1."""

    path: tuple[str, ...]
    depth: int
    collection: str
    many: int = 0
    """As of Name."""


@dataclass(frozen=True)
class Subquery(Node):
    """`@any(collection, condition)` or `@count(...)`: the account's records that match.

    In the condition, Inner is a field of theirs, and Name one of the record that is judged.
    """

    function: str
    collection: str
    condition: Node
    depth: int
    place: int
    """Where the text names the collection."""


@dataclass(frozen=True)
class Caller(Node):
    """`@request.auth.<attribute>`: who asks; null where nobody signed in.

    An attribute of users is `attributes.<name>`; one of the account acted in, `account.<name>`, and
    its plan PLAN.
    """

    attribute: str

    @property
    def written(self) -> str:
        """The name as expressions write it."""
        if self.attribute == PLAN:
            return "@account.plan"
        of_account = self.attribute.removeprefix(OF_ACCOUNT)
        if of_account != self.attribute:
            return f"@account.attributes.{of_account}"
        return f"@request.auth.{self.attribute}"

    @property
    def is_defined(self) -> bool:
        """Whether it is an attribute that the operator defines."""
        return self.attribute.startswith((OF_USER, OF_ACCOUNT))


@dataclass(frozen=True)
class Sent(Node):
    """`@request.data.<field>`: what the body says."""

    field: str


@dataclass(frozen=True)
class Now(Node):
    """`@now`: the moment of the evaluation."""


@dataclass(frozen=True)
class Call(Node):
    """A function with its arguments; those that ask about the caller begin with `@`."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class ListOf(Node):
    """A list, which stands only after IN and in functions that take one."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Arithmetic(Node):
    """Two numbers and `+ - * / %`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Comparison(Node):
    """Two values and `= != < <= > >= ~ !~`; never null."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Membership(Node):
    """Whether a value is one of some; never null."""

    value: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True)
class Contains(Node):
    """Whether a list has a text; never null."""

    container: Node
    item: Node


@dataclass(frozen=True)
class IsNull(Node):
    value: Node
    negated: bool


@dataclass(frozen=True)
class Not(Node):
    """The negation of a condition; null counts as false."""

    part: Node


@dataclass(frozen=True)
class Junction(Node):
    """Conditions of which all (`and`) or any (`or`) must hold."""

    operator: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Some(Node):
    """Whether a condition holds for an entry of the list that a path leads to; never null."""

    path: tuple[str, ...]
    condition: Node
    depth: int = 0
    """Whose list it is: 0 for that of the record that is judged, else as of Inner."""

    @property
    def follows(self) -> bool:
        """Whether the condition reads more of the entries than their ids."""
        names = (part for part in walk(self.condition) if list_of(part) == (self.depth, self.path))
        return any(isinstance(one, Name | Inner) and one.many < len(one.path) for one in names)


def list_of(node: Node) -> tuple[int, tuple[str, ...]] | None:
    """The list that a name goes through, as the depth and path of a Some; None without one."""
    if not isinstance(node, Name | Inner) or not node.many:
        return None
    return node.depth if isinstance(node, Inner) else 0, node.path[: node.many]


def goes_through_list(node: Node) -> bool:
    """Whether an expression reads records that a list leads to."""
    return any(isinstance(part, Some) and part.follows for part in walk(node))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    left = [node]
    while left:
        one = left.pop()
        yield one
        left.extend(reversed([*one.children]))


def subqueries(node: Node) -> Iterator[Subquery]:
    """The parts that look at other records, without those inside of them."""
    if isinstance(node, Subquery):
        yield node
    else:
        for part in node.children:
            yield from subqueries(part)


class Keys(NamedTuple):
    """What an `@any` compares: a field of the records that it looks at, and a value outside."""

    inner: Node
    outer: Node
    rest: Sequence[Node]
    """Its other conditions, which look at nothing outside."""


def matching_keys(node: Subquery) -> Keys | None:
    """The equality that alone ties an `@any` to what is outside of it; None if there is none."""

    def is_outside(part: Node) -> bool:
        is_around = isinstance(part, Inner | Some) and part.depth < node.depth
        return is_around or isinstance(part, Name | Old)

    whole = node.condition
    parts = whole.parts if isinstance(whole, Junction) and whole.operator == "and" else [whole]
    tied = [part for part in parts if any(map(is_outside, walk(part)))]
    if len(tied) != 1 or not isinstance(tied[0], Comparison) or tied[0].operator != "=":
        return None
    for inner, outer in ((tied[0].left, tied[0].right), (tied[0].right, tied[0].left)):
        is_field = isinstance(inner, Inner) and (inner.depth, len(inner.path)) == (node.depth, 1)
        looks_inside = any(
            isinstance(part, Inner | Some) and part.depth >= node.depth for part in walk(outer)
        )
        if is_field and not looks_inside and inner.type is outer.type:
            return Keys(inner, outer, [part for part in parts if part is not tied[0]])
    return None


def asks_for_plan(part: Node) -> bool:
    """Whether a part of an expression reads the plan or a flag of the account acted in."""
    if isinstance(part, Call):
        return part.name == "@flag"
    return isinstance(part, Caller) and part.attribute == PLAN


def looks_elsewhere(node: Node, own: Collection[str]) -> bool:
    """Whether an expression asks, of the record that is judged, for what other records have.

    Dotted names of the `own` fields are of the record itself. An `@any` does that does not name it.
    """
    for part in walk(node):
        if isinstance(part, Name | Old) and len(part.path) > 1 and part.path[0] not in own:
            return True
        if _is_own_list(part) and (part.follows or len(part.path) > 1):
            return True
        if isinstance(part, Subquery) and any(
            isinstance(one, Name | Old) or _is_own_list(one) for one in walk(part.condition)
        ):
            return True
    return False


def _is_own_list(node: Node) -> TypeGuard[Some]:
    return isinstance(node, Some) and node.depth == 0


def names_old(node: Node) -> bool:
    """Whether an expression looks at the record as it was."""
    return any(isinstance(part, Old | Changed) for part in walk(node))


def unguarded(node: Node) -> Iterator[tuple[str, int]]:
    """The fields that are compared with the caller while their `@old` is not, with positions.

    Whoever may write such a field makes the comparison true. `!@changed(field)` will do as well.
    """
    compared: dict[str, int] = {}
    guarded = set[str]()
    for part in walk(node):
        if isinstance(part, Not) and isinstance(part.part, Changed):
            guarded |= {one.path[0] for one in walk(part.part.right) if isinstance(one, Old)}
        for side in _sides_beside_caller(part):
            for one in walk(side):
                if isinstance(one, Name):
                    compared.setdefault(one.path[0], one.start)
                elif isinstance(one, Sent):
                    compared.setdefault(one.field, one.start)
                elif isinstance(one, Old):
                    guarded.add(one.path[0])
    yield from ((name, at) for name, at in compared.items() if name not in guarded)


def _sides_beside_caller(part: Node) -> Sequence[Node]:
    """What a test compares with the caller; of a subquery that names the caller, all of it."""
    if isinstance(part, Subquery):
        sides: Sequence[Node] = (part.condition,)
        return sides if any(isinstance(one, Caller) for one in walk(part)) else ()
    if isinstance(part, Comparison):
        sides = (part.left, part.right)
    elif isinstance(part, Membership):
        sides = (part.value, *part.items)
    elif isinstance(part, Contains):
        sides = (part.container, part.item)
    else:
        return ()
    return sides if any(isinstance(one, Caller) for side in sides for one in walk(side)) else ()


def required_fields(condition: Node) -> frozenset[str]:
    """Fields of which a record must have a value for a condition to hold; perhaps not all."""
    if isinstance(condition, Junction):
        each = [required_fields(part) for part in condition.parts]
        return (
            frozenset.union(*each) if condition.operator == "and" else each[0].intersection(*each)
        )
    values: tuple[Node, ...] = ()
    if isinstance(condition, Comparison) and not condition.operator.startswith("!"):
        values = (condition.left, condition.right)
    elif isinstance(condition, Contains):
        values = (condition.container, condition.item)
    elif isinstance(condition, Membership | IsNull):
        is_there = condition.negated is isinstance(condition, IsNull)
        values = (condition.value,) if is_there else ()
    if any(one.type is Type.NULL for one in values):
        return frozenset()
    own = (one.path for one in values if isinstance(one, Name))
    return frozenset(path[0] for path in own if len(path) == 1)


def fixed_fields(condition: Node) -> frozenset[str]:
    """Fields that have one value in all records for which a condition holds; perhaps not all."""
    if isinstance(condition, Junction) and condition.operator == "and":
        return frozenset().union(*map(fixed_fields, condition.parts))
    sides: tuple[tuple[Node, Node], ...] = ()
    if isinstance(condition, Comparison) and condition.operator == "=":
        sides = (condition.left, condition.right), (condition.right, condition.left)
    return frozenset(
        name.path[0]
        for name, other in sides
        if isinstance(name, Name)
        and len(name.path) == 1
        and other.type is not Type.NULL
        and not any(isinstance(part, Name | Old | Some | Subquery) for part in walk(other))
    )


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each of its parts changed."""
    changes: dict[str, Any] = {}
    for one in fields(node):
        value = getattr(node, one.name)
        if isinstance(value, Node):
            changes[one.name] = change(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            changes[one.name] = tuple(change(part) for part in value)
    return replace(node, **changes) if changes else node
