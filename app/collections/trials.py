"""Tries rules before they are saved, and says what those of a collection open to a role.

Warns of rules that are valid: who may write what they compare, and missing indexes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from app import clock, db, rules
from app.accounts.models import User
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import (
    access,
    definitions,
    expression_names,
    fragments,
    indexes,
    totals,
)
from app.collections.definitions import Definition
from app.context import shown_accounts
from app.errors import InvalidValues, NotFound, problem
from app.rules import constants, values
from app.rules.nodes import Comparison, Contains, Junction, Membership, Some
from app.types import JSONMapping, JSONObject

SYSTEM_TYPES = definitions.field_types({})
ANY_NAME: rules.Scope = rules.Scope(
    SYSTEM_TYPES, open=True, old=True, related=lambda name: ANY_NAME
)
ANY_USER: Any = dict.fromkeys(
    (
        *("id", "email", "account_id", "groups", "mfa"),
        *("attributes", "account_attributes", "plan", "flags"),
    ),
    rules.UNKNOWN,
)
UNGUARDED = (
    "A caller may write {}, which is compared with the caller: compare its @old, too, or leave it"
    " out of update_fields."
)
UNINDEXED = "{} reads all records of {} in the account: index {} there."
UNTIED = "{} reads all records of {} in the account: compare an indexed field of it by =."
SCANNED = "Lists read all records of an account, up to {}: index {}."
ALWAYS, NEVER = "This always holds.", "This never holds."
ALWAYS_OPEN = (
    "This always holds, also for callers who are not signed in: true, alone, is for the signed-in."
)
MANY_RECORDS = 10_000
"""Of one account, from which on a rule of lists is to have an index."""


class Reach(StrEnum):
    """The records that an operation opens to a role, whatever the user's other properties."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


def scope_for(
    collection: str | None, names: Sequence[str], operation: str | None = None
) -> rules.Scope:
    """The scope of a rule: a collection's fields, or the given names, of any type."""
    if collection is not None:
        definition = dataclasses.replace(definitions.get(collection), fragments=fragments.load())
        return definition.rule_scope(operation or "")
    if not names:
        return dataclasses.replace(ANY_NAME, fragments=fragments.load())
    types = SYSTEM_TYPES | dict.fromkeys(names, rules.Type.ANY)
    scope = rules.Scope(types, related=definitions.related_scope, old=operation == "update")
    return dataclasses.replace(scope, fragments=fragments.load())


def rule_problems(rule: str | None, scope: rules.Scope) -> list[JSONObject]:
    """The problems of a rule; null, empty and `true` have none."""
    problem_ = access.rule_problem(rule, scope) if rule is not None else None
    return [problem_ | {"field": "rule"}] if problem_ else []


def evaluate(
    rule: str | None,
    record: JSONMapping,
    caller: rules.Subject,
    records: Mapping[str, Sequence[JSONMapping]] = MappingProxyType({}),
    old: JSONMapping | None = None,
) -> bool:
    """Evaluate a rule for a sample record and caller. Raises InvalidValues.

    `records` are what `@any` and `@count` look at, by collection; `old` is the record before the
    change, None if it was the same.
    """
    scope = scope_for(None, ())
    problems = rule_problems(rule, scope)
    if problems:
        raise InvalidValues(problems)
    if rule is None or caller.is_superadmin:
        return caller.is_superadmin
    if not definitions.is_expression(rule):
        return rule == "" or caller.id is not None
    node = rules.condition(rule, scope)
    related = {name.lower(): list(map(_read, rows)) for name, rows in records.items()}
    read: Any = _read(record) | ({} if old is None else {rules.OLD: _read(old)})
    context = rules.Context(read, caller, now=clock.now(), related=related)
    return rules.holds(node, context)


def _read(record: JSONMapping) -> JSONObject:
    return {name: _value(name, value) for name, value in record.items()}


def _value(name: str, value: object) -> object:
    if isinstance(value, Mapping):  # a referenced record
        return _read(value)
    # System timestamps must be compared as such, not as texts.
    if isinstance(value, str) and SYSTEM_TYPES.get(name) is rules.Type.DATETIME:
        with suppress(ValueError):
            return values.moment(value)
    return value


def reach_of_role(role: str, collection: definitions.Definition) -> dict[str, Reach]:
    """Return the records that each operation opens to users of a role."""
    user = rules.Subject(role=role, **ANY_USER)
    reach = {}
    for operation in rules.OPERATIONS:
        condition = collection.conditions[operation]
        if condition is not None:
            opens = rules.truth(rules.partial_evaluate(condition, user))
        else:
            opens = collection.rule(operation) is not None
        reach[operation] = {True: Reach.ALL, False: Reach.NONE, None: Reach.SOME}[opens]
    return reach


def load_caller(user_id: str) -> Principal:
    """Load a user as the caller of a request. Raises InvalidValues."""
    account_id = db.db.session.scalar(sa.select(User.account_id).where(User.id == user_id.lower()))
    principal = principals.for_user(account_id, user_id.lower()) if account_id else None
    shown_accounts.note(account_id)
    if principal is None:
        message = "There is no such active user."
        raise InvalidValues([problem("user_id", "invalid_reference", message)])
    return principal


def warnings_of_rule(
    text: str | None, scope: rules.Scope, operation: str | None, of: Definition | None
) -> list[JSONObject]:
    """The warnings of a rule that is valid in a scope, with positions; of any operation if None."""
    if text is None or not definitions.is_expression(text):
        return []
    node = rules.condition(text, scope)
    unguarded = rules.unguarded(node) if operation == "update" else ()
    found = [
        problem(None, "unguarded_field", UNGUARDED.format(name), position=position)
        for name, position in unguarded
        if name in scope.writable
    ]
    for part, always in constants.parts(node):
        code, message = ("always_true", ALWAYS) if always else ("always_false", NEVER)
        message = ALWAYS_OPEN if always and part is node else message
        found.append(problem(None, code, message, position=part.start))
    if of is not None and operation in (None, "list"):
        found += _scanned(node, of)
    return [*found, *_unindexed(node)]


def warnings_of_collection(definition: Definition) -> Iterator[JSONObject]:
    """The warnings of a collection's valid rules, by their places."""
    for operation in rules.OPERATIONS:
        key, text = f"{operation}_rule", definition.rule(operation)
        with suppress(rules.RuleError):
            scope = definition.rule_scope(key)
            for one in warnings_of_rule(text, scope, operation, definition):
                yield one | {"field": f"{definition.name}.{key}"}


def all_warnings(definition: Definition) -> list[JSONObject]:
    """The warnings of a collection's rules, and of the names that they and its fields use."""
    current = fragments.with_current(definition)
    return [*expression_names.warnings(definition), *warnings_of_collection(current)]


def _scanned(node: rules.Node, of: Definition) -> Iterator[JSONObject]:
    """A warning for each way to meet a rule of lists that no index serves, if records are many."""
    ways = node.parts if isinstance(node, Junction) and node.operator == "or" else (node,)
    found = [(way, names) for way in ways if (names := _unserved(way, of))]
    if not found:
        return
    largest = totals.by_account(of.id, 1)
    count = largest[0][2] if largest else 0
    if count >= MANY_RECORDS:
        for way, names in found:
            message = SCANNED.format(f"{count:,}", " or ".join(names))
            yield problem(None, "no_index", message, position=way.start)


def _unserved(way: rules.Node, of: Definition) -> Sequence[str]:
    """The fields of a record that a condition compares; none if an index serves one of them."""
    is_all = isinstance(way, Junction) and way.operator == "and"
    names = dict.fromkeys(
        side.path[0]
        for part in (way.parts if isinstance(way, Junction) and is_all else (way,))
        for side in _sides(part)
        if isinstance(side, rules.Name) and len(side.path) == 1 and not side.many
    )
    served = {"id", "created_at", *of.leading, *of.computed}
    return [] if served.intersection(names) else list(names)


def _sides(part: rules.Node) -> Sequence[rules.Node]:
    if isinstance(part, Comparison) and not part.operator.startswith("!"):
        return (part.left, part.right)
    return (part.value,) if isinstance(part, Membership) and not part.negated else ()


def _unindexed(node: rules.Node) -> Iterator[JSONObject]:
    """A warning for each `@any` and `@count` that no index narrows."""
    for part in rules.walk(node):
        if not isinstance(part, rules.Subquery):
            continue
        with suppress(NotFound):
            target = definitions.get(part.collection)
            whole = part.condition
            every = isinstance(whole, Junction) and whole.operator == "and"
            conditions = whole.parts if isinstance(whole, Junction) and every else (whole,)
            if any(isinstance(one, Some | Contains) for one in conditions):
                continue  # entries of lists have an index
            names = [name for one in conditions for name in _compared(one, part.depth)]
            found = indexes.of_collection(target.schema, target.indexes)
            indexed = {"id", "created_at", *(index.names[0] for index in found)}
            if indexed.isdisjoint(names):
                text = UNINDEXED if names else UNTIED
                values = (f"@{part.function}", target.name, " or ".join(dict.fromkeys(names)))
                yield problem(None, "no_index", text.format(*values), position=part.start)


def _compared(condition: rules.Node, depth: int) -> Iterator[str]:
    """The fields of a subquery's records that an equality compares with something outside."""
    if isinstance(condition, Comparison) and condition.operator == "=":
        sides = (condition.left, condition.right), (condition.right, condition.left)
        for inner, outer in sides:
            is_field = isinstance(inner, rules.Inner) and inner.depth == depth
            looks_inside = any(
                isinstance(one, rules.Inner) and one.depth >= depth for one in rules.walk(outer)
            )
            if isinstance(inner, rules.Inner) and is_field and not looks_inside:
                yield from inner.path[:1] if len(inner.path) == 1 else ()
