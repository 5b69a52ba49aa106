"""Checks an expression against a schema; an error says where it does not fit, and why.

The result is the same tree with a type on every node, in which nothing is left to be decided later:
texts compared with moments have become moments, computed fields their expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.rules import attributes, cost, values
from app.rules.functions import CALLERS, PLAIN, SPECIAL
from app.rules.lexer import KEYWORDS
from app.rules.matching import OPAQUE, TEMPORAL, WORDS, alike, check_ordered, expect, united
from app.rules.nodes import (
    Arithmetic,
    Call,
    Caller,
    Changed,
    Comparison,
    Contains,
    Fragment,
    Inner,
    IsNull,
    Junction,
    ListOf,
    Literal,
    Membership,
    Name,
    Node,
    Not,
    Now,
    Old,
    RuleError,
    Sent,
    Some,
    Subquery,
    Type,
    list_of,
    map_children,
    names_old,
    unguarded,
    walk,
)
from app.rules.parser import FURTHEST, parse

WORDS_OF_VALUES = {None: "null", True: "true", False: "false"}
ONLY_IN_CONDITIONS = "A name that goes through a list stands in conditions."
MAX_SUBQUERIES = 5
# With the expressions of the computed fields that it names.
MAX_NODES = 1000


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use."""

    fields: Mapping[str, Type]
    computed: Mapping[str, Node] = field(default_factory=dict)
    """Checked expressions that stand for a name."""
    follow: Callable[[str], Scope | None] = lambda name: None
    """The scope that a reference leads to, where the name is one that may be followed."""
    related: Callable[[str], Scope | None] | None = None
    """The scope of a collection that `@any` looks at; None where there is no such thing.

    Raises RuleError where it may not be looked at.
    """
    fragments: Mapping[str, str] | None = None
    """The texts of fragments; None where none may be used."""
    old: bool = False
    """Whether there is a record as it was before the change."""
    writable: frozenset[str] = frozenset()
    """Fields that a caller may have changed."""
    caller: bool = True
    """Whether `@request` and the functions about the caller may be used."""
    attribute_types: Callable[[str], Mapping[str, Type]] = attributes.types_of
    """The types of the attributes of callers and accounts that may be named."""
    open: bool = False
    """Whether every name is allowed, those beside `fields` with a type that only values tell."""
    furthest: int = FURTHEST
    """The most dots of a name."""
    ids: frozenset[str] = frozenset()
    """Names of ids, whose texts compare in any case."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names that are there but may not be used, and what is said of them."""
    lists: frozenset[str] = frozenset()
    """Names of lists of references: a condition holds if it does for any of the entries."""
    is_stored: bool = False
    """Whether the text was accepted earlier: `cost` bounds new ones only."""


ANYTHING: Scope = Scope({}, open=True, old=True, related=lambda name: ANYTHING)
"""The scope of rules of which only the form can be checked."""


def condition(text: str, scope: Scope) -> Node:
    """The checked tree of a rule or filter. Raises RuleError."""
    return _Checker(scope).whole(text, Type.BOOLEAN)


def value(text: str, scope: Scope, expected: Type = Type.ANY) -> Node:
    """The checked tree of an expression that gives a value of a type. Raises RuleError."""
    return _Checker(scope).whole(text, expected)


class _Checker:
    def __init__(self, scope: Scope, inner: tuple[Scope, ...] = ()) -> None:
        self.scope, self.inner = scope, inner  # of the record, and of those in `@any` around
        self.innermost = inner[-1] if inner else scope

    def whole(self, text: str, expected: Type) -> Node:
        parsed = parse(text, self.scope.furthest)
        is_condition = expected is Type.BOOLEAN
        checked = self._condition(parsed) if is_condition else expect(self.check(parsed), expected)
        if free := next(_free(checked), None):
            raise RuleError(ONLY_IN_CONDITIONS, free.start)
        if sum(1 for _ in walk(checked)) > MAX_NODES:
            raise RuleError("The expression is too long, including its computed fields.", 0)
        if names_old(checked) and not self.scope.is_stored:
            for name, position in unguarded(checked):
                if name in self.scope.writable:
                    message = (
                        f"A caller may write {name} and so pass, as the rule judges the change"
                        " once: compare its @old with the caller, too."
                    )
                    raise RuleError(message, position)
        found = [part for part in walk(checked) if isinstance(part, Subquery)]
        if len(found) > MAX_SUBQUERIES:
            message = f"An expression has at most {MAX_SUBQUERIES} times @any and @count."
            raise RuleError(message, found[MAX_SUBQUERIES].start)
        if not self.scope.is_stored:
            cost.check(checked)
        return checked

    def check(self, node: Node) -> Node:
        return CHECKS[type(node)](self, node)

    def literal(self, node: Literal) -> Node:
        # Fields of older releases may have the name of a word, which no expression can mean.
        word = WORDS_OF_VALUES.get(node.value) if node.type in (Type.NULL, Type.BOOLEAN) else None
        scope = self.innermost
        fields = () if scope.open else (*scope.fields, *scope.computed)
        if word and any(name.lower() == word and name in KEYWORDS for name in fields):
            message = f"{word} is a word of the language: rename the field of this name."
            raise RuleError(message, node.start)
        return node

    def name(self, node: Name | Inner) -> Node:
        scope = self._scope_of(node)
        if scope.open:
            return replace(node, type=scope.fields.get(node.path[-1], Type.ANY))
        *steps, last = node.path
        many = 0
        for place, step in enumerate(steps, start=1):
            if step in scope.lists:
                if many:
                    raise RuleError("A name goes through one list at most.", node.start)
                many = place
            target = scope.follow(step)
            if target is None:
                message_ = f"{step} is not a reference that can be followed here."
                message = message_ if step in scope.fields else _no_field(step, scope)
                raise RuleError(message, node.start)
            scope = target
        if last in scope.computed:
            return _through_references(scope.computed[last], tuple(steps), node, many)
        if last not in scope.fields:
            raise RuleError(_no_field(last, scope), node.start)
        return replace(node, type=scope.fields[last], many=many)

    def old(self, node: Old) -> Node:
        if not self.scope.old:
            raise RuleError("There is no change here, so no @old.", node.start)
        return _as_old(self.name(Name(node.start, node.end, node.path)))

    def _changed(self, node: Call) -> Node:
        self._count(node, 1, 1)
        if not self.scope.old:
            raise RuleError("There is no change here, so no @changed.", node.start)
        (field_,) = node.arguments
        if not isinstance(field_, Name) or len(field_.path) > 1:
            raise RuleError("Expected a field of the record.", field_.start)
        checked = self.name(field_)
        return _typed(Changed(node.start, node.end, checked, _as_old(checked)))

    def _scope_of(self, node: Name | Inner | Old) -> Scope:
        return self.inner[node.depth - 1] if isinstance(node, Inner) else self.scope

    def subquery(self, node: Subquery) -> Node:
        if self.scope.related is None:
            raise RuleError(f"@{node.function} cannot be used here.", node.start)
        try:
            related = self.scope.related(node.collection)
        except RuleError as error:
            raise RuleError(str(error), node.place) from None
        if related is None:
            message = f"There is no collection {node.collection[:63]}."
            raise RuleError(message, node.place)
        checked = _Checker(self.scope, (*self.inner, related))._condition(node.condition)
        if free := next(_free(checked), None):
            raise RuleError(ONLY_IN_CONDITIONS, free.start)
        for part in walk(checked):
            if isinstance(part, Some) and not part.depth:
                message = "Within @any and @count, a name of @record goes through no list."
                raise RuleError(message, part.start)
        kind = Type.BOOLEAN if node.function == "any" else Type.NUMBER
        return replace(node, condition=checked, type=kind)

    def fragment(self, node: Fragment) -> Node:
        if self.scope.fragments is None:
            raise RuleError("@rule cannot be used here.", node.start)
        text = self.scope.fragments.get(node.name)
        if text is None:
            raise RuleError(f"There is no fragment {node.name[:63]}.", node.start)
        within = _Checker(replace(self.scope, fragments=None))
        try:
            tree = within._condition(parse(text, self.scope.furthest))
        except RuleError as error:
            message = f"The fragment {node.name} does not fit here: {error}"
            raise RuleError(message, node.start) from error
        return _placed(tree, node)

    def caller(self, node: Caller) -> Node:
        self._about_caller(node)
        if not node.is_defined:
            return node
        prefix, _, name = node.attribute.partition(".")
        types = self.scope.attribute_types(f"{prefix}.")
        if name not in types:
            raise RuleError(f"There is no attribute {name[:63]}: {node.written[:80]}.", node.start)
        return replace(node, type=types[name])

    def sent(self, node: Sent) -> Node:
        self._about_caller(node)
        if self.scope.open:
            return node
        if node.field in self.scope.computed:
            raise RuleError(f"{node.field} is computed, and nobody sends it.", node.start)
        if node.field not in self.scope.fields:
            raise RuleError(_no_field(node.field, self.scope), node.start)
        return replace(node, type=self.scope.fields[node.field])

    def now(self, node: Now) -> Node:
        return node

    def list_of(self, node: ListOf) -> Node:
        raise RuleError(
            "A list is allowed only after IN, or as an argument of some functions.", node.start
        )

    def arithmetic(self, node: Arithmetic) -> Node:
        left, right = self.check(node.left), self.check(node.right)
        for side in (left, right):
            if node.operator == "+" and side.type is Type.TEXT:
                message = "Expected a number, found a text. Use concat(a, b) to join texts."
                raise RuleError(message, side.start)
        kind = Type.DECIMAL if Type.DECIMAL in (left.type, right.type) else Type.NUMBER
        return replace(node, left=expect(left, kind), right=expect(right, kind), type=kind)

    def comparison(self, node: Comparison) -> Node:
        left, right = self.check(node.left), self.check(node.right)
        negated = node.operator.startswith("!")
        if Type.NULL in (left.type, right.type):
            if node.operator in ("=", "!="):
                tested = right if left.type is Type.NULL else left
                return _some(_typed(IsNull(node.start, node.end, tested, negated)))
            return Literal(node.start, node.end, negated, type=Type.BOOLEAN)
        left, right = self._entry(left), self._entry(right)
        if node.operator in ("~", "!~"):
            left, right = expect(left, Type.TEXT), expect(right, Type.TEXT)
        else:
            left, right = alike(*self._in_lower_case(left, right))
            if node.operator not in ("=", "!="):
                check_ordered(left)
        return _some(_typed(replace(node, left=left, right=right)))

    def membership(self, node: Membership) -> Node:
        tested = self._entry(self.check(node.value))
        items = []
        for checked in map(self._entry, map(self.check, node.items)):
            tested, item = self._in_lower_case(tested, checked)
            if item.type is not Type.NULL:
                # The literal null equals nothing; what it is compared with stays as it is.
                tested, like = alike(tested, item)
                items.append(like)
        items = [alike(tested, item)[1] for item in items]
        return _some(_typed(replace(node, value=tested, items=tuple(items))))

    def _in_lower_case(self, left: Node, right: Node) -> tuple[Node, Node]:
        """The sides of a comparison; written ids become lower-case, as ids are stored."""
        is_id = self._is_id(left) or self._is_id(right)
        return (_lower(left), _lower(right)) if is_id else (left, right)

    def _is_id(self, node: Node) -> bool:
        if isinstance(node, Caller):
            return node.attribute in ("id", "account_id")
        if isinstance(node, Sent):
            return node.field in self.scope.ids
        if not isinstance(node, Name | Inner | Old):
            return False
        scope = self._last_scope(node)
        return scope is not None and node.path[-1] in scope.ids

    def _last_scope(self, node: Name | Inner | Old) -> Scope | None:
        """The scope of a name's last step."""
        scope: Scope | None = self._scope_of(node)
        for step in node.path[:-1]:
            scope = scope.follow(step) if scope else None
        return scope

    def _entry(self, node: Node) -> Node:
        """An entry of the list, if a name stands for one of references.

        Not of the judged record's within `@any`: its links may not be stored yet.
        """
        names = Inner if self.inner else Name
        if not isinstance(node, names) or node.type is not Type.LIST or node.many:
            return node
        scope = self._last_scope(node)
        is_list = scope is not None and node.path[-1] in scope.lists
        return replace(node, type=Type.TEXT, many=len(node.path)) if is_list else node

    def _condition(self, node: Node) -> Node:
        """The checked node as a condition."""
        checked = expect(self.check(node), Type.BOOLEAN)
        return _some(checked) if isinstance(checked, Name | Inner) else checked

    def is_null(self, node: IsNull) -> Node:
        return _some(_typed(replace(node, value=self.check(node.value))))

    def negation(self, node: Not) -> Node:
        return _typed(replace(node, part=self._condition(node.part)))

    def junction(self, node: Junction) -> Node:
        parts = tuple(map(self._condition, node.parts))
        return _typed(replace(node, parts=parts))

    def call(self, node: Call) -> Node:
        if node.name in CALLERS:
            self._about_caller(node)
            check: Callable[[Call], Node] = getattr(self, "_" + node.name[1:])
            return check(node)
        if node.name in SPECIAL:
            check = getattr(self, "_" + node.name.removeprefix("@"))
            return check(node)
        if node.name in PLAIN:
            return self._plain(node)
        names = ", ".join((*CALLERS, *SPECIAL, *PLAIN))
        message = f"There is no function {node.name[:60]}. There are: {names}."
        raise RuleError(message, node.start)

    def _plain(self, node: Call) -> Node:
        function = PLAIN[node.name]
        maximum = len(function.parameters)
        self._count(node, maximum - function.optional, maximum)
        given = [self.check(argument) for argument in node.arguments]
        is_exact = function.decimal is not None and given[0].type is Type.DECIMAL
        first = Type.DECIMAL if is_exact else function.parameters[0]
        parameters = (first, *function.parameters[1:])
        checked = list(map(expect, given, parameters))
        if function.unit:
            unit = checked[-1]
            if not isinstance(unit, Literal) or unit.value not in values.UNITS:
                message = f"Expected one of the units {', '.join(values.UNITS)} in quotes."
                raise RuleError(message, unit.start)
        result = Type.DECIMAL if is_exact else function.result
        return replace(node, arguments=tuple(checked), type=result)

    def _owns_record(self, node: Call) -> Node:
        self._count(node, 0, 0)
        owner: Node = Name(node.start, node.end, ("created_by",))
        if depth := len(self.inner):
            owner = Inner(node.start, node.end, ("created_by",), depth, "")
        caller = Caller(node.start, node.end, "id", type=Type.TEXT)
        return self.check(Comparison(node.start, node.end, "=", owner, caller))

    def _has_role(self, node: Call) -> Node:
        self._count(node, 1, 1)
        return self._word_call(node, [node.arguments[0]])

    _has_group = _flag = _has_role

    def _has_any_role(self, node: Call) -> Node:
        self._count(node, 1, None)
        listed = node.arguments[0] if len(node.arguments) == 1 else None
        return self._word_call(node, listed.items if isinstance(listed, ListOf) else node.arguments)

    def _is_superadmin(self, node: Call) -> Node:
        self._count(node, 0, 0)
        return _typed(node)

    def _word_call(self, node: Call, arguments: Sequence[Node]) -> Node:
        return _typed(replace(node, arguments=tuple(map(self._word, arguments))))

    def _contains(self, node: Call) -> Node:
        self._count(node, 2, 2)
        container, item = map(self.check, node.arguments)
        if container.type not in (Type.LIST, Type.ANY):
            message = f"Expected {WORDS[Type.LIST]}, found {WORDS[container.type]}."
            raise RuleError(message, container.start)
        container, item = self._in_lower_case(container, expect(item, Type.TEXT))
        entry = self._entry(container)
        if entry is not container:
            return _some(_typed(Comparison(node.start, node.end, "=", entry, item)))
        return _some(_typed(Contains(node.start, node.end, container, item)))

    def _concat(self, node: Call) -> Node:
        self._count(node, 1, None)
        checked = [self.check(argument) for argument in node.arguments]
        for one in checked:
            if one.type in (*TEMPORAL, *OPAQUE):
                expect(one, Type.TEXT)
        return replace(node, arguments=tuple(checked), type=Type.TEXT)

    def _decimal(self, node: Call) -> Node:
        """The decimal that a number is, or a text writes: null if it writes none."""
        self._count(node, 1, 1)
        (given,) = map(self.check, node.arguments)
        if given.type in (Type.TEXT, Type.ANY):
            return replace(node, arguments=(given,), type=Type.DECIMAL)
        return expect(given, Type.DECIMAL)

    def _now(self, node: Call) -> Node:
        self._count(node, 0, 0)
        return Now(node.start, node.end, type=Type.DATETIME)

    def _if(self, node: Call) -> Node:
        self._count(node, 3, 3)
        condition, *choices = node.arguments
        return self._chosen(node, choices, self._condition(condition))

    def _coalesce(self, node: Call) -> Node:
        self._count(node, 1, None)
        return self._chosen(node, node.arguments)

    def _nullif(self, node: Call) -> Node:
        self._count(node, 2, 2)
        return self._chosen(node, node.arguments)

    def _chosen(self, node: Call, choices: Sequence[Node], *before: Node) -> Node:
        """A function that returns one of several values, after other arguments."""
        checked, kind = united([self.check(choice) for choice in choices])
        if kind is Type.NULL:
            return Literal(node.start, node.end, None, type=kind)
        return replace(node, arguments=(*before, *checked), type=kind)

    def _word(self, node: Node) -> Node:
        """A bare word or a quoted one, as a text."""
        is_bare = isinstance(node, Inner) and node.depth == len(self.inner)
        is_bare |= isinstance(node, Name) and not self.inner
        if is_bare and isinstance(node, Name | Inner) and len(node.path) == 1:
            return Literal(node.start, node.end, node.path[0], type=Type.TEXT)
        if isinstance(node, Literal) and node.type is Type.TEXT:
            return node
        raise RuleError("Expected a name, bare or in quotes.", node.start)

    def _about_caller(self, node: Node) -> None:
        if not self.scope.caller:
            raise RuleError("The caller cannot be used here.", node.start)

    def _count(self, node: Call, minimum: int, maximum: int | None) -> None:
        count = len(node.arguments)
        if count < minimum or (maximum is not None and count > maximum):
            expected = (
                str(minimum)
                if minimum == maximum
                else f"{minimum} to {maximum}"
                if maximum
                else f"{minimum}+"
            )
            message = f"{node.name} takes {expected} arguments, found {count}."
            raise RuleError(message, node.start)


CHECKS: dict[type[Node], Callable[[_Checker, Any], Node]] = {
    Literal: _Checker.literal,
    Name: _Checker.name,
    Inner: _Checker.name,
    Fragment: _Checker.fragment,
    Old: _Checker.old,
    Subquery: _Checker.subquery,
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


def _placed(node: Node, place: Node) -> Node:
    """A tree of another text, at a place of this one."""
    moved = replace(node, start=place.start, end=place.end)
    return map_children(moved, lambda part: _placed(part, place))


def _as_old(node: Node) -> Node:
    """An expression over the record as it was."""
    if isinstance(node, Name):
        return Old(node.start, node.end, node.path, type=node.type)
    return map_children(node, _as_old)


def _typed(node: Node) -> Node:
    return replace(node, type=Type.BOOLEAN)


def _lower(node: Node) -> Node:
    if isinstance(node, Literal) and isinstance(node.value, str):
        return replace(node, value=node.value.lower())
    return node


def _no_field(name: str, scope: Scope) -> str:
    if name in scope.refused:
        return scope.refused[name]
    like = next((field for field in scope.fields if field.lower() == name.lower()), None)
    hint = f" Did you mean {like}?" if like else ""
    return f"There is no field {name[:63]}.{hint}"


def _some(node: Node) -> Node:
    """A condition about any of the entries of each list that its names go through."""
    for depth, path in sorted(set(filter(None, map(list_of, _free(node))))):
        node = _typed(Some(node.start, node.end, path, node, depth))
    return node


def _free(node: Node) -> Iterator[Node]:
    """Yield the names through lists that no `Some` is about."""
    if list_of(node):
        yield node
    for part in node.children:
        for one in _free(part):
            if not isinstance(node, Some) or list_of(one) != (node.depth, node.path):
                yield one


def _through_references(node: Node, path: tuple[str, ...], name: Name | Inner, many: int) -> Node:
    """A computed field's expression with its names prefixed by a reference path."""
    moved = replace(node, start=name.start, end=name.end)
    if isinstance(moved, Name):
        if len(path) + len(moved.path) > FURTHEST + 1:
            raise RuleError(f"A name follows at most {FURTHEST} references.", name.start)
        moved = replace(name, path=(*path, *moved.path), type=moved.type, many=many)
    return map_children(moved, lambda part: _through_references(part, path, name, many))
