"""Rules tried out before they are saved: is it one, and what would it let through (contract 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import sqlalchemy as sa

from app import clock, db, rules
from app.accounts.models import User
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access, definition
from app.errors import InvalidValues, problem
from app.rules import values
from app.types import JSONMapping, JSONObject

SYSTEM_TYPES = definition.field_types({})
ANY_NAME = rules.Scope(SYSTEM_TYPES, open=True)


def scope_for(collection: str | None, names: Sequence[str]) -> rules.Scope:
    """The names a rule is checked against: a collection's, or those given, of any type."""
    if collection is not None:
        return definition.get(collection).scope
    if not names:
        return ANY_NAME
    return rules.Scope(SYSTEM_TYPES | dict.fromkeys(names, rules.Type.ANY))


def rule_problems(rule: str | None, scope: rules.Scope) -> list[JSONObject]:
    """Why a text is no rule; null, empty and `true` always are."""
    found = access.rule_problem(rule, scope) if rule is not None else None
    return [found | {"field": "rule"}] if found else []


def judge(rule: str | None, record: JSONMapping, asker: rules.Asker) -> bool:
    """Whether a rule lets a made-up caller at a made-up record. Raises InvalidValues."""
    found = rule_problems(rule, ANY_NAME)
    if found:
        raise InvalidValues(found)
    if rule is None or asker.is_superadmin:
        return asker.is_superadmin
    if not definition.is_expression(rule):
        return rule == "" or asker.id is not None
    node = rules.condition(rule, ANY_NAME)
    return rules.holds(node, rules.Context(_read(record), asker, now=clock.now()))


def _read(record: JSONMapping) -> JSONObject:
    return {name: _value(name, value) for name, value in record.items()}


def _value(name: str, value: object) -> object:
    if isinstance(value, Mapping):  # what a reference leads to
        return _read(value)
    # System fields are what they are in every collection: moments do not compare as texts.
    if isinstance(value, str) and SYSTEM_TYPES.get(name) is rules.Type.DATETIME:
        with suppress(ValueError):
            return values.moment(value)
    return value


def caller_of(user_id: str) -> Principal:
    """The user, as the caller that a request of theirs has. Raises InvalidValues."""
    account_id = db.db.session.scalar(sa.select(User.account_id).where(User.id == user_id.lower()))
    found = principals.for_user(account_id, user_id.lower()) if account_id else None
    if found is None:
        message = "There is no such active user."
        raise InvalidValues([problem("user_id", "invalid_reference", message)])
    return found
