"""A caller's access to a collection's records: rules and field lists, compiled.

This is the only place that decides. `records.service` adds `where` to every statement that reads,
checks every row it writes with `allows`, and reads and writes only the fields listed here. A rule
is parsed once per version of its collection, and compiled once for all callers for whom partial
evaluation leaves the same condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any

import sqlalchemy as sa

from app import clock, rules
from app.accounts import attributes
from app.accounts import names as known_names
from app.accounts.attributes import Kind
from app.auth import key_scopes
from app.auth.principal import Principal, rule_caller
from app.collections import attribute_values, definitions, masking, people
from app.collections.columns import TableColumns
from app.collections.definitions import ALL_FIELDS, Definition, ViewDefinition, is_expression
from app.collections.fields import SYSTEM_FIELDS, Field
from app.collections.people import People
from app.collections.view_sources import CLOSED, bind
from app.db import replica
from app.db.versioned_cache import Memo
from app.errors import Forbidden, NotFound, Unauthorized, ViewReadOnly, problem
from app.rules import depth, sql
from app.rules.named import FLAG
from app.rules.nodes import PLAN, asks_for_plan
from app.types import JSONMapping, JSONObject, cached_property

MAX_CACHED_LENGTH, MAX_CACHED_NODES = 500, 50
GROUP_HIDDEN = "You may not see what the rows of this view have in common."
OF_OTHERS = "A filter of the trash cannot ask for what other records have."
MASKED = "You see {} masked, so you cannot filter or sort by it."


class RuleDenied(Forbidden):
    """A caller whom a collection's rule refuses."""

    error = "rule_denied"
    message = "The collection's rules do not allow this."

    def __init__(self, caller: Principal, collection: str, operation: str) -> None:
        super().__init__()
        self.caller, self.collection, self.operation = caller, collection, operation


@dataclass(frozen=True, eq=False)
class Access:
    """One caller's access for one operation."""

    definition: Definition
    caller: Principal
    readable: Mapping[str, Field]
    """The fields that the caller may see, system fields included."""
    masked: frozenset[str]
    """The readable fields that the caller sees masked."""
    writable: frozenset[str]
    """The declared fields that the caller may send."""
    read_only: frozenset[str]
    """Fields of the operation's list that nobody writes, or whose `writable_if` refuses."""
    operation: str
    condition: rules.Node | None = None
    """The condition that a record must meet; None for all records of the account."""
    about_caller: bool = False
    """Whether the rule depends on the caller, so that signing in may help."""
    within: JSONMapping = field(default_factory=dict)
    """The bind parameters within the table of a view."""

    @cached_property
    def subject(self) -> rules.Subject:
        """The caller as rules see it."""
        return rule_caller(self.caller)

    @cached_property
    def _compiled(self) -> sql.Compiled | None:
        if self.condition is None:
            return None
        cache_ = self.definition.compiled
        if self.condition not in cache_:
            columns = TableColumns(self.definition, self.definition.table, account=sql.ACCOUNT)
            cache_[self.condition] = sql.condition(self.condition, columns)
        return cache_[self.condition]

    @property
    def where(self) -> sa.ColumnElement[bool] | None:
        """The WHERE condition of the rule, besides the account; None means all rows."""
        return self._compiled.expression if self._compiled else None

    @property
    def parameters(self) -> JSONObject:
        """The bind parameters of `where`, and within the table."""
        if self._compiled is None:
            return {**self.within}
        own = self._compiled.parameters(self.subject, account_id=self.caller.account_id)
        return {**self.within, **own} if self.within else own

    @cached_property
    def comparable(self) -> Mapping[str, Field]:
        """The fields that the caller may filter, sort and group by."""
        return {name: field for name, field in self.readable.items() if name not in self.masked}

    @cached_property
    def exposed(self) -> frozenset[str]:
        """The readable fields with personal data that the caller sees unmasked."""
        return (self.definition.personal & self.readable.keys()) - self.masked

    @cached_property
    def named(self) -> frozenset[tuple[str, ...]]:
        parts = rules.walk(self.condition) if self.condition else ()
        return frozenset(part.path for part in parts if isinstance(part, rules.Name))

    @cached_property
    def judges_change(self) -> bool:
        """Whether the rule is judged once, on the change, as it names `@old` or `@changed`."""
        rule = self.definition.conditions.get(self.operation) if self.condition else None
        return rule is not None and rules.names_old(rule)

    @cached_property
    def subqueries(self) -> Sequence[rules.Subquery]:
        """What the rule asks of other records; to be read before `allows`."""
        return list(rules.subqueries(self.condition)) if self.condition else ()

    @cached_property
    def memo(self) -> Memo:
        """What was built from it for one request."""
        return Memo()

    @cached_property
    def follows(self) -> frozenset[tuple[str, ...]]:
        """The dotted names of the rule; their values must be loaded before `allows`."""
        return dotted_names(self.condition) if self.condition else frozenset()

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The fields that have one value in all records that meet the rule."""
        return rules.fixed_fields(self.condition) if self.condition else frozenset()

    def check_open(self) -> None:
        """Raise `refusal()` if the rule refuses every record."""
        if self.condition is not None and rules.truth(self.condition) is False:
            raise self.refusal()

    def allows(self, record: JSONMapping, sent: JSONMapping | None = None) -> bool:
        """Whether a stored record meets the rule, given the body sent."""
        if self.condition is None:
            return True
        context = rules.Context(record, self.subject, sent or {}, clock.now())
        return rules.holds(self.condition, context)

    def refusal(self) -> Exception:
        """The error for a caller whom the rule refuses."""
        if not self.caller.signed_in and self.about_caller:
            return Unauthorized()
        return RuleDenied(self.caller, self.definition.name, self.operation)


def for_operation(caller: Principal, definition: Definition, operation: str) -> Access:
    """The caller's access for an operation. Raises Unauthorized or Forbidden if it is closed."""
    access = definition.access_memo.get(_compute, caller, definition, operation)
    if definition.view is not None:
        replica.require_lasting({(definition.name, "")})  # it reads under rules of others
    if access.condition is not None:
        # What other records say is as new as the rule that asks for it.
        others = {(part.collection, "") for part in access.subqueries}
        replica.require_lasting(access.named | others)
    return access


def _compute(caller: Principal, definition: Definition, operation: str) -> Access:
    check_scope(caller, definition, operation)
    if isinstance(definition, ViewDefinition):
        return _ruled(of_view(caller, definition, operation))
    readable = _readable(caller, definition, operation if operation == "list" else "view")
    writable = _writable(caller, definition, operation)
    closed = closed_fields(rule_caller(caller), definition, "writable_if")
    read_only = closed.union(definition.unwritten)
    access = Access(
        definition,
        caller,
        readable=readable,
        masked=_masked(caller, definition, readable),
        writable=writable - read_only,
        read_only=writable & read_only,
        operation=operation,
    )
    return _ruled(access)


def _ruled(access: Access) -> Access:
    """The access under the rule of its operation. Raises Unauthorized or Forbidden if closed."""
    caller, definition, operation = access.caller, access.definition, access.operation
    rule = definition.rule(operation)
    if caller.is_superadmin or rule == "":
        return access
    if rule is None or (rule.strip() == "true" and not caller.signed_in):
        raise _closed(caller, definition, operation)
    condition = definition.conditions[operation]
    return access if condition is None else _under_rule(access, condition)


def of_view(caller: Principal, view: ViewDefinition, operation: str) -> Access:
    """The caller's access to a view's rows before its own rule: what it may list of what it reads.

    A column is there if all fields that it is made of are, as they are in lists and under what
    references lead to. Whoever does not see what rows have in common, or sees it masked, gets none.
    Raises as `for_operation`, and ViewReadOnly.
    """
    if operation not in ("list", "view"):
        raise ViewReadOnly
    base = for_operation(caller, view.base, "list")
    reached: dict[tuple[str, ...], Access | None] = {(): base}
    shown: Sequence[str] = ()
    for path, target in view.targets.items():
        if isinstance(target, People):
            shown = people.known_fields(caller)
        else:
            reached[path] = if_open(caller, target, "view")

    def sees(path: tuple[str, ...], *, unmasked: bool) -> bool:
        for end, name in enumerate(path):
            if isinstance(view.targets.get(path[:end]), People):
                return name in shown
            access, is_followed = reached[path[:end]], end + 1 < len(path)
            if access is None:
                return False
            if name not in (access.comparable if unmasked or is_followed else access.readable):
                return False
        return True

    seen = set(view.system)
    for column in view.read_columns:
        if sees(column.path, unmasked=view.is_grouped):
            seen.add(column.name)
        elif view.is_grouped and column.function is None:
            raise Forbidden(GROUP_HIDDEN, error="field_denied")
    conditions = tuple(
        (path, CLOSED if one is None else one.condition) for path, one in reached.items() if path
    )
    of_people = None if shown else CLOSED
    conditions += tuple((path, of_people) for path in view.targets if path not in reached)
    narrowed = view.narrowed and rules.partial_evaluate(view.narrowed, base.subject)
    whose = (caller.account_id is None, base.condition, narrowed, conditions)
    bound = view.memo.get(bind, view, *whose)
    readable = _readable(caller, bound, operation)
    readable = {name: one for name, one in readable.items() if name in seen}
    within: JSONObject = {}
    for compiled in bound.conditions_within:
        within |= compiled.parameters(base.subject, account_id=caller.account_id)
    masked = _masked(caller, bound, readable)
    none = frozenset[str]()
    return Access(bound, caller, readable, masked, none, none, operation, within=within)


def _under_rule(access: Access, rule: rules.Node) -> Access:
    depends_on_caller = rules.depends_on_caller(rule)
    condition = rules.partial_evaluate(rule, access.subject)
    if access.definition.is_trash:  # what other records said went with the record, or after it
        alone = rules.decided_alone(condition, access.definition.files)
        condition = rules.partial_evaluate(alone, access.subject)
    truth = rules.truth(condition)
    if truth is False and depends_on_caller and not access.caller.signed_in:
        raise Unauthorized
    return replace(access, condition=None if truth else condition, about_caller=depends_on_caller)


def if_open(caller: Principal, definition: Definition, operation: str) -> Access | None:
    """The caller's access for an operation; None if it is closed for every record."""
    try:
        access = for_operation(caller, definition, operation)
    except (Forbidden, Unauthorized):
        return None
    never = access.condition is not None and rules.truth(access.condition) is False
    return None if never else access


def check_scope(caller: Principal, definition: Definition, operation: str) -> None:
    """Raise ScopeDenied for an API key whose scopes leave the operation out.

    For answers that hide closed collections: a key gets a 403 that names what it lacks.
    """
    if not key_scopes.include(caller.scopes, definition.name, operation):
        raise key_scopes.denied(definition.name, operation)


def is_open(caller: Principal, definition: Definition, operation: str) -> bool:
    """Whether an operation is open to the caller for at least some records."""
    return if_open(caller, definition, operation) is not None


def sees_masked(caller: Principal, field: Field) -> bool:
    """Whether the caller sees a field's values masked."""
    return field.pii and masking.masks_for(caller)


def closed_fields(caller: rules.Subject, definition: Definition, right: str) -> frozenset[str]:
    """The fields whose `readable_if` or `writable_if` refuses the caller."""
    conditions = definition.rights[right].items()
    if caller.is_superadmin:
        return frozenset()
    return frozenset(n for n, one in conditions if not rules.holds(one, rules.Context({}, caller)))


def rule_problem(rule: str, scope: rules.Scope) -> JSONObject | None:
    """The problem of a rule's text in this scope, or None."""
    if not is_expression(rule):
        return None
    try:
        rules.condition(rule, scope)
    except rules.RuleError as error:
        return problem(None, "rule_invalid", str(error), position=error.position)
    return None


def check_writable(access: Access, names: set[str]) -> None:
    """Raise Forbidden (`field_denied`) for fields that the operation's list leaves out."""
    fields, listed = access.definition.fields, access.writable | access.read_only
    denied = [name for name in fields if name in names and name not in listed]
    if denied:
        message = f"You may not write: {', '.join(denied)}."
        details = [
            problem(name, "field_denied", "You may not write this field.") for name in denied
        ]
        raise Forbidden(message, error="field_denied", details=details)


@dataclass(frozen=True, eq=False)
class Filter:
    """A valid filter of a caller."""

    node: rules.Node

    @cached_property
    def is_cached(self) -> bool:
        """Whether its SQL is cached: it is small and no rule is part of it."""
        return _is_cacheable(self.node)

    @cached_property
    def presupposed(self) -> frozenset[str]:
        """Fields that are not null in every matching record."""
        return rules.required_fields(self.node)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Fields that have one value in all matching records."""
        return rules.fixed_fields(self.node)

    @cached_property
    def is_same_for_all(self) -> bool:
        """Whether its SQL is cached and the same for all callers."""
        return self.is_cached and not rules.depends_on_caller(self.node)


def read_filter(access: Access, text: str) -> Filter:
    """Parse a filter. Raises RuleError."""
    # A dotted name may lead to records that only some callers may view.
    if "." in text or "@" in text or len(text) > MAX_CACHED_LENGTH:
        node = rules.condition(text, filter_scope(access))
        definition = access.definition
        if definition.is_trash and rules.looks_elsewhere(node, definition.files):
            raise rules.RuleError(OF_OTHERS, 0)
        if any(map(asks_for_plan, rules.walk(node))) and (
            unknown := known_names.unknown_problem(text, kinds=(PLAN, FLAG))
        ):
            raise rules.RuleError(unknown["message"], unknown["position"], unknown["code"])
        return Filter(node)
    names = (tuple(access.comparable), frozenset(access.masked))
    return access.definition.memo.get(_plain_filter, access.definition, text, *names)


def _plain_filter(
    definition: Definition, text: str, comparable: tuple[str, ...], masked: frozenset[str]
) -> Filter:
    scope = _scope(definition, comparable, masked, lambda name: None)
    return Filter(rules.condition(text, scope))


def filter_scope(access: Access) -> rules.Scope:
    """The scope of the caller's filters: fields that it sees unmasked."""
    follow, related = cache(partial(_follow, access)), cache(partial(_related, access.caller))
    scope = _scope(access.definition, access.comparable, access.masked, follow)
    seen = partial(_attribute_types, access.caller)
    return replace(scope, related=related, attribute_types=seen)


def _attribute_types(caller: Principal, prefix: str) -> Mapping[str, rules.Type]:
    """The types of the attributes of the caller and the account that the caller sees."""
    levels = {
        Kind.USERS: attribute_values.level_for_self(caller),
        Kind.ACCOUNTS: attribute_values.level_for_account(caller),
    }
    return attributes.rule_types_seen(levels, prefix)


def _related(caller: Principal, name: str) -> rules.Scope | None:
    """The scope of a collection in `@any`; None also if it is closed, as if it were not there."""
    try:
        definition = definitions.get(name)
    except NotFound:
        return None
    if definition.view is not None:
        return None
    check_scope(caller, definition, "list")
    listed = if_open(caller, definition, "list")
    return filter_scope(listed) if listed else None


def _scope(
    definition: Definition, comparable: Iterable[str], masked: Iterable[str], follow: Any
) -> rules.Scope:
    computed, names = definition.computed, list(comparable)
    return rules.Scope(
        {name: definition.columns[name].rule_type for name in names if name not in computed},
        {name: node for name, node in computed.items() if name in names},
        follow,
        ids=definition.id_names,
        lists=frozenset(definition.lists),
        refused={name: MASKED.format(name) for name in masked},
    )


def _follow(access: Access, name: str) -> rules.Scope | None:
    if name in access.comparable and name in access.definition.files:
        return rules.Scope(access.definition.files[name].properties)
    target = access.definition.followed(name) if name in access.comparable else None
    if isinstance(target, People):
        return people.filter_scope(access.caller)
    if target is None:
        return None
    check_scope(access.caller, target, "view")
    if not is_open(access.caller, target, "view"):
        return None
    return filter_scope(for_operation(access.caller, target, "view"))


def filter_condition(access: Access, parsed: Filter) -> sql.Compiled:
    """The filter in SQL.

    References reach only records that the caller may view, `@any` those that it may list.
    """
    if parsed.is_same_for_all:
        return access.definition.memo.get(_shared_condition, access.definition, parsed)
    left = rules.partial_evaluate(parsed.node, access.subject)
    if _is_cacheable(left):
        return access.definition.memo.get(_cached_condition, access.definition, left)

    reach = Reach(access.caller)
    room = depth.ROOM - depth.INNER
    compiled = sql.condition(left, reach.columns(access.definition), room=room)
    return sql.compiled(compiled.expression, [*rules.walk(left), *reach.parts])


class Reach:
    """The records that a caller's names lead to, in statements about an account's records.

    References reach only records that the caller may view, `@any` those that it may list.
    """

    def __init__(self, caller: Principal) -> None:
        self.caller = caller
        self.parts: list[rules.Node] = []
        """The parts of all rules that became conditions; they say what has to be bound."""

    def columns(self, definition: Definition) -> TableColumns:
        """The columns of a collection's records, and of those that their names lead to."""
        within = partial(self._conditions, "view"), partial(self._conditions, "list")
        return TableColumns(definition, definition.table, *within, account=sql.ACCOUNT)

    def _conditions(
        self, operation: str, target: Definition | People, source: object
    ) -> Iterable[object]:
        if isinstance(target, People):
            return ()
        condition = for_operation(self.caller, target, operation).condition
        if condition is None:
            return ()
        self.parts += rules.walk(condition)
        columns = TableColumns(target, source, account=sql.ACCOUNT)
        return (sql.condition(condition, columns, room=depth.INNER).expression,)


def _is_cacheable(node: rules.Node) -> bool:
    parts = list(islice(rules.walk(node), MAX_CACHED_NODES + 1))
    is_own = not any(
        isinstance(part, rules.Subquery) or (isinstance(part, rules.Name) and len(part.path) > 1)
        for part in parts
    )
    return len(parts) <= MAX_CACHED_NODES and is_own


def _shared_condition(definition: Definition, parsed: Filter) -> sql.Compiled:
    return _cached_condition(definition, rules.partial_evaluate(parsed.node, rules.Subject()))


def _cached_condition(definition: Definition, node: rules.Node) -> sql.Compiled:
    columns = TableColumns(definition, definition.table)
    return sql.condition(node, columns, room=depth.ROOM - depth.INNER)


def dotted_names(node: rules.Node) -> frozenset[tuple[str, ...]]:
    """The dotted names of an expression."""
    names = (part.path for part in _judged(node) if isinstance(part, rules.Name))
    return frozenset(path for path in names if len(path) > 1)


def _judged(node: rules.Node) -> Iterator[rules.Node]:
    """The parts of an expression that are not left to a subquery."""
    yield node
    for part in () if isinstance(node, rules.Subquery) else node.children:
        yield from _judged(part)


def _closed(caller: Principal, definition: Definition, operation: str) -> Exception:
    if not caller.signed_in:
        return Unauthorized()
    return RuleDenied(caller, definition.name, operation)


def _readable(caller: Principal, definition: Definition, operation: str) -> Mapping[str, Field]:
    hidden = closed_fields(rule_caller(caller), definition, "readable_if")
    open_fields = definition.field_list(operation)
    if caller.is_superadmin or open_fields == ALL_FIELDS:
        open_fields = definition.columns
        if not hidden:
            return definition.columns
    listed = {*SYSTEM_FIELDS, *open_fields} - hidden
    return {
        name: field
        for name, field in definition.columns.items()
        if name in listed and definition.inputs(name) <= listed
    }


def _masked(
    caller: Principal, definition: Definition, readable: Mapping[str, Field]
) -> frozenset[str]:
    if not definition.personal or not masking.masks_for(caller):
        return frozenset()
    return definition.personal & readable.keys()


def _writable(caller: Principal, definition: Definition, operation: str) -> frozenset[str]:
    open_fields = definition.field_list(operation)
    if caller.is_superadmin or open_fields == ALL_FIELDS:
        return frozenset(definition.fields)
    return frozenset(open_fields) & frozenset(definition.fields)
