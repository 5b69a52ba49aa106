"""Tries rules before they are saved, and says what those of a collection open to a role."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from app import clock, db, rules
from app.accounts.models import User
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access, definitions, fragments
from app.context import shown_accounts
from app.errors import InvalidValues, problem
from app.rules import values
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
