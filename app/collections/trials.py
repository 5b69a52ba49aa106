"""Rules tried out before they are saved: is it one, what would it let through, why (contract 6).

Only for those who write rules: ordinary answers never say which clause refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from app import clock, db, rules
from app.accounts.models import User
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access, definition
from app.collections.columns import TableColumns
from app.collections.definition import Definition
from app.errors import InvalidValues, NotFound, problem
from app.rules import sql
from app.rules.nodes import Junction

ANY_NAME = rules.Scope({}, open=True)


def scope_for(collection: str | None, names: Sequence[str]) -> rules.Scope:
    """The names a rule is checked against: a collection's, or those given, of any type."""
    if collection is not None:
        return definition.named(collection).scope
    if not names:
        return ANY_NAME
    known = definition.types_of({})
    return rules.Scope(known | dict.fromkeys(names, rules.Type.ANY))


def rule_problems(rule: str | None, scope: rules.Scope) -> list[dict[str, Any]]:
    """Why a text is no rule; null, empty and `true` always are."""
    found = access.rule_problem(rule, scope) if rule is not None else None
    return [found | {"field": "rule"}] if found else []


def judge(rule: str | None, record: Mapping[str, Any], asker: rules.Asker) -> bool:
    """Whether a rule lets a made-up caller at a made-up record. Raises InvalidValues."""
    found = rule_problems(rule, ANY_NAME)
    if found:
        raise InvalidValues(found)
    if rule is None or asker.is_superadmin:
        return asker.is_superadmin
    if not definition.is_expression(rule):
        return rule == "" or asker.id is not None
    node = rules.condition(rule, ANY_NAME)
    return rules.holds(node, rules.Context(record, asker, now=clock.now()))


def explain(
    collection: Definition,
    operation: str,
    asker: rules.Asker,
    record_id: str | None,
    account_id: str | None,
) -> dict[str, Any]:
    """Whether a caller may do an operation, with a record if one is named, and what decides it."""
    rule = collection.rule(operation)
    told: dict[str, Any] = {"collection": collection.name, "operation": operation, "rule": rule}
    told |= {"clause": None, "sql": None}
    record = _record(collection, account_id, record_id) if record_id is not None else None
    node = collection.conditions[operation]
    if node is None or asker.is_superadmin:
        return told | _by_form(rule, asker)
    told |= {"sql": _sql(collection, node, asker)}
    left = rules.residual(node, asker)
    known = rules.truth(left)
    if record is None and known is None:
        reason = "It depends on the record."
        return told | {"allowed": None, "reason": reason, "depends_on": _source(rule, left)}
    led_to = _led_to(collection, record, node) if record else {}
    context = rules.Context({**(record or {}), **led_to}, asker, now=clock.now())
    clause = rules.deciding(node, rule or "", context)
    allowed = rules.holds(node, context)
    reason = f"`{clause.text}` {'holds' if clause.holds else 'does not hold'}."
    return told | {"allowed": allowed, "reason": reason, "clause": _shown(clause)}


def _by_form(rule: str | None, asker: rules.Asker) -> dict[str, Any]:
    if asker.is_superadmin:
        return {"allowed": True, "reason": "Superadmins pass every rule."}
    if rule is None:
        return {"allowed": False, "reason": "The rule is null: closed to all but superadmins."}
    if rule == "":
        return {"allowed": True, "reason": "The rule is empty: open to everyone."}
    signed_in = asker.id is not None
    reason = "The rule is true: open to whoever has signed in to the account."
    return {"allowed": signed_in, "reason": reason}


def caller_of(user_id: str) -> Principal:
    """The user, as the caller that a request of theirs has. Raises InvalidValues."""
    account_id = db.db.session.scalar(sa.select(User.account_id).where(User.id == user_id.lower()))
    found = principals.of_user(account_id, user_id.lower()) if account_id else None
    if found is None:
        message = "There is no such active user."
        raise InvalidValues([problem("user_id", "invalid_reference", message)])
    return found


def _record(collection: Definition, account_id: str | None, record_id: str) -> Mapping[str, Any]:
    table = collection.table
    within = [table.c.account_id == account_id] if account_id else []
    statement = sa.select(*collection.selected).where(*within, table.c.id == record_id)
    row = db.connection().execute(statement).first()
    if row is None:
        raise NotFound("There is no such record.")
    return dict(zip(collection.columns, row, strict=True))


def _led_to(
    collection: Definition, record: Mapping[str, Any], node: rules.Node
) -> Mapping[str, Any]:
    paths = access.followed_by(node)
    if not paths:
        return {}
    source = TableColumns(collection, collection.table)
    key = [collection.table.c[name] == record[name] for name in ("account_id", "id")]
    chosen = sa.select(*(source.column(path) for path in paths)).where(*key)
    row = db.connection().execute(chosen).one()
    return dict(zip((".".join(path) for path in paths), row, strict=True))


def _sql(collection: Definition, node: rules.Node, asker: rules.Asker) -> str:
    columns = TableColumns(collection, collection.table)
    built = sql.condition(rules.residual(node, asker), columns).expression
    return str(built.compile(dialect=db.db.engine.dialect))


def _source(rule: str | None, node: rules.Node) -> str:
    while isinstance(node, Junction) and len(node.parts) == 1:
        node = node.parts[0]  # the other parts are decided
    return (rule or "")[node.start : node.end]


def _shown(clause: rules.Clause) -> dict[str, Any]:
    values = {text: _json(value) for text, value in clause.values.items()}
    plain = {"text": clause.text, "position": clause.position, "holds": clause.holds}
    return plain | {"values": values}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.isoformat() if isinstance(value, date) else value
