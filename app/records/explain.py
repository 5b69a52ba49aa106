"""Why a caller may or may not do something: which part of the rule decides (contract 6).

Only for those who write rules: ordinary answers never say which clause refused. What would be made
or changed is made ready as a write makes it ready, and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect

from app import clock, db, rules
from app.collections import access
from app.collections.columns import TableColumns
from app.collections.definition import ALL_FIELDS, Definition
from app.errors import InvalidValues, NotFound
from app.records import changes, store, values
from app.records.store import Row
from app.rules import sql

WRITING = ("create", "update")


@dataclass(frozen=True)
class Question:
    """An operation, who asks, and with what."""

    operation: str
    asker: rules.Asker
    account_id: str | None
    """The account of the records; None is all."""
    record_id: str | None = None
    data: Mapping[str, Any] | None = None
    """The body that would be sent; None where that is not known."""


@dataclass(frozen=True)
class _Case:
    """A record that the rule has to hold for, None while it is not known, and what is sent."""

    record: Row | None
    sent: Mapping[str, Any] | None
    words: str = ""

    def context(self, asker: rules.Asker) -> rules.Context:
        """What the rule is evaluated on."""
        unknown: list[type[rules.Node]] = []
        unknown += [rules.Name] if self.record is None else []
        unknown += [rules.Sent] if self.sent is None else []
        return rules.Context(self.record or {}, asker, self.sent or {}, clock.now(), tuple(unknown))


def explain(collection: Definition, asked: Question) -> dict[str, Any]:
    """Whether a caller may do it, and what decides. Raises NotFound, or InvalidValues for data."""
    rule, node = collection.rule(asked.operation), collection.conditions[asked.operation]
    told = {"collection": collection.name, "operation": asked.operation, "rule": rule}
    told |= {"clause": None, "sql": None, "parameters": None}
    before = _stored(collection, asked)
    if node is None or asked.asker.is_superadmin:
        told |= _by_form(rule, asked.asker)
    else:
        told |= _statement(collection, node, asked)
        told |= _by_rule(node, rule or "", asked, _cases(collection, node, asked, before))
    return told | (_by_field_list(collection, asked) if told["allowed"] is not False else {})


def _stored(collection: Definition, asked: Question) -> Row | None:
    if asked.record_id is None:
        return None
    scoped = store.scope(collection, asked.account_id)
    row = store.read_one(collection, scoped, asked.record_id, ())
    if row is None:
        raise NotFound(changes.NO_RECORD)
    return row


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


def _by_field_list(collection: Definition, asked: Question) -> dict[str, Any]:
    opened, data = collection.field_list(asked.operation), asked.data or {}
    if opened == ALL_FIELDS or asked.asker.is_superadmin:
        return {}
    denied = [name for name in collection.fields if name in data and name not in opened]
    reason = f"The field list of the operation does not open: {', '.join(denied)}."
    return {"allowed": False, "reason": reason, "clause": None} if denied else {}


def _cases(
    collection: Definition, node: rules.Node, asked: Question, before: Row | None
) -> Sequence[_Case]:
    """All of what the rule has to hold for: of a change, the record before and after it."""
    paths = access.followed_by(node)
    if before is not None:
        before = store.followed(collection, [before], paths)[0]
    if asked.operation not in WRITING:
        return [_Case(before, {})]  # nothing is sent
    if asked.data is None:
        return [_Case(before, None)]
    sent = values.taken(collection, asked.data)
    if asked.operation == "update" and before is None:
        return [_Case(None, sent)]
    after = _made_ready(collection, asked, before)
    after |= store.foreseen(collection, after, paths)
    if before is None:
        return [_Case(after, sent)]
    return [
        _Case(before, sent, " for the record as it is"),
        _Case(after, sent, " for the record as it would be"),
    ]


def _made_ready(collection: Definition, asked: Question, before: Row | None) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    given = changes.new_system_values([asked.account_id], asked.asker.id)[0]
    body = asked.data or {}
    if before is None:
        row = values.fresh(collection, body, given, found)
    else:
        stamp = {"updated_at": given["updated_at"], "updated_by": given["updated_by"]}
        row = {**before, **values.changed(collection, before, body, found), **stamp}
    if found:
        raise InvalidValues([{**one, "field": f"data.{one['field']}"} for one in found])
    return row


def _by_rule(
    node: rules.Node, rule: str, asked: Question, cases: Sequence[_Case]
) -> dict[str, Any]:
    for case in cases:
        context = case.context(asked.asker)
        allowed = rules.surely(node, context)
        if not allowed:
            break
    if allowed is None:
        return _undecided(node, rule, asked, context)
    clause = rules.deciding(node, rule, context)
    words = "" if allowed else case.words
    reason = f"`{clause.text}` {'holds' if clause.holds else 'does not hold'}{words}."
    return {"allowed": allowed, "reason": reason, "clause": _shown(clause)}


def _undecided(
    node: rules.Node, rule: str, asked: Question, context: rules.Context
) -> dict[str, Any]:
    part = rules.undecided(node, context)
    kinds = {type(one) for one in rules.walk(part)} & set(context.unknown)
    record = "the new record" if asked.operation == "create" else "the record"
    words = {rules.Name: record, rules.Sent: "what is sent"}
    on = " and on ".join(word for kind, word in words.items() if kind in kinds)
    source = rule[part.start : part.end]
    return {"allowed": None, "reason": f"It depends on {on}.", "depends_on": source}


def _statement(collection: Definition, node: rules.Node, asked: Question) -> dict[str, Any]:
    """What finds the records for which the rule holds, as the database is sent it."""
    table = collection.table
    compiled = sql.condition(rules.residual(node, asked.asker), TableColumns(collection, table))
    scoped = store.scope(collection, asked.account_id, compiled.expression)
    scoped += [table.c.id == asked.record_id] if asked.record_id is not None else []
    built = sa.select(table.c.id).where(*scoped).compile(dialect=_dialect())
    sent = values.taken(collection, asked.data or {})
    bound = built.construct_params(compiled.parameters(asked.asker, sent))
    return {"sql": str(built), "parameters": {name: _json(one) for name, one in bound.items()}}


def _dialect() -> Dialect:
    dialect = db.db.engine.dialect
    # SQLite takes parameters by name as well as by place, which tells less.
    return sqlite.dialect(paramstyle="named") if dialect.positional else dialect


def _shown(clause: rules.Clause) -> dict[str, Any]:
    looked_at = {text: _json(value) for text, value in clause.values.items()}
    plain = {"text": clause.text, "position": clause.position, "holds": clause.holds}
    return plain | {"values": looked_at}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.isoformat() if isinstance(value, date) else value
