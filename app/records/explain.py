"""Why a caller may or may not do something: which part of the rule decides (contract 6).

Only for those who write rules: ordinary answers never say which clause refused. What would be made
or changed is made ready as a write makes it ready, and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect

from app import clock, rules
from app.auth import principal as principals
from app.collections import access, masking
from app.collections.columns import TableColumns
from app.collections.definition import ALL_FIELDS, NEVER, Definition
from app.db import engine, versioned_cache
from app.errors import InvalidValues, NotFound, problem
from app.records import store
from app.records.store import Row, reads, references
from app.records.write import changes, values
from app.rules import sql
from app.types import JSONMapping, JSONObject

WRITING = ("create", "update")
ACCOUNT = "auth.account_id"
NO_ACCOUNT = "The rule asks for the account of the new record: name it."
LOST_ACCOUNT = "There is no such active account."


@dataclass(frozen=True)
class Question:
    """An operation, who asks, and with what."""

    operation: str
    asker: rules.Asker
    account_id: str | None
    """The account of the records; None is all."""
    record_id: str | None = None
    data: JSONMapping | None = None
    """The body that would be sent; None where that is not known."""


@dataclass(frozen=True)
class _Case:
    """A record that the rule has to hold for, None while it is not known, and what is sent."""

    record: Row | None
    sent: JSONMapping | None
    words: str = ""

    def context(self, asker: rules.Asker) -> rules.Context:
        """What the rule is evaluated on."""
        unknown: list[type[rules.Node]] = []
        unknown += [rules.Name] if self.record is None else []
        unknown += [rules.Sent] if self.sent is None else []
        return rules.Context(self.record or {}, asker, self.sent or {}, clock.now(), tuple(unknown))


def explain(collection: Definition, asked: Question) -> JSONObject:
    """Whether a caller may do it, and what decides.

    Raises NotFound, or InvalidValues for what a write would get as far as finding at fault.
    """
    rule, node = collection.rule(asked.operation), collection.conditions[asked.operation]
    told = {"collection": collection.name, "operation": asked.operation, "rule": rule}
    told |= {"clause": None, "sql": None, "parameters": None}
    before = _stored(collection, asked)
    if node is None or asked.asker.is_superadmin:
        verdicts = _without_expression(collection, asked, before)
    elif node is NEVER:
        reason = "The rule does not fit the schema any more: closed to all but superadmins."
        verdicts = iter([{"allowed": False, "reason": reason}])
    else:
        told |= _statement(collection, node, asked)
        verdicts = _by_expression(collection, node, asked, before)
    for verdict in verdicts:
        if verdict["allowed"] is False:
            break
    return told | verdict


def _without_expression(
    collection: Definition, asked: Question, before: Row | None
) -> Iterator[JSONObject]:
    yield _by_form(collection.rule(asked.operation), asked.asker)
    yield from _by_field_list(collection, asked)
    # A superadmin's body may name another account, of which nothing is known here.
    if _is_foreseen(asked, before) and not asked.asker.is_superadmin:
        _made_ready(collection, asked, before)


def _by_expression(
    collection: Definition, node: rules.Node, asked: Question, before: Row | None
) -> Iterator[JSONObject]:
    """What a write asks, in its order: the first refusal ends it."""
    rule = collection.rule(asked.operation) or ""
    if before is not None:
        before = references.resolve(collection, [before], access.dotted_names(node))[0]
    yield _by_rule(node, rule, asked, _as_it_is(collection, asked, before))
    yield from _by_field_list(collection, asked)
    if _is_foreseen(asked, before):
        yield _by_rule(node, rule, asked, _as_it_would_be(collection, node, asked, before))


def _is_foreseen(asked: Question, before: Row | None) -> bool:
    return asked.data is not None and (asked.operation == "create" or before is not None)


def _stored(collection: Definition, asked: Question) -> Row | None:
    if asked.record_id is None:
        return None
    row = reads.read_one(collection, asked.account_id, asked.record_id, versioned_cache.NO_CHECKS)
    if row is None:
        raise NotFound(changes.NO_RECORD)
    return row


def _by_form(rule: str | None, asker: rules.Asker) -> JSONObject:
    if asker.is_superadmin:
        return {"allowed": True, "reason": "Superadmins pass every rule."}
    if rule is None:
        return {"allowed": False, "reason": "The rule is null: closed to all but superadmins."}
    if rule == "":
        return {"allowed": True, "reason": "The rule is empty: open to everyone."}
    signed_in = asker.id is not None
    reason = "The rule is true: open to whoever has signed in to the account."
    return {"allowed": signed_in, "reason": reason}


def _by_field_list(collection: Definition, asked: Question) -> Iterator[JSONObject]:
    opened, data = collection.field_list(asked.operation), asked.data or {}
    if opened == ALL_FIELDS or asked.asker.is_superadmin:
        return
    denied = [name for name in collection.fields if name in data and name not in opened]
    if denied:
        reason = f"The field list of the operation does not open: {', '.join(denied)}."
        yield {"allowed": False, "reason": reason}


def _as_it_is(collection: Definition, asked: Question, before: Row | None) -> _Case:
    """What the rule has to hold for before anything is made of what is sent."""
    if asked.operation not in WRITING:
        return _Case(before, {})  # nothing is sent
    if asked.data is None or asked.operation == "create":
        return _Case(before, None)
    words = "" if before is None else " for the record as it is"
    return _Case(before, values.clean_valid(collection, asked.data), words)


def _as_it_would_be(
    collection: Definition, node: rules.Node, asked: Question, before: Row | None
) -> _Case:
    if before is None:
        _check_account(node, asked)
    after = _made_ready(collection, asked, before)
    after |= references.resolve_one(collection, after, access.dotted_names(node))
    words = "" if before is None else " for the record as it would be"
    return _Case(after, values.clean_valid(collection, asked.data or {}), words)


def _check_account(node: rules.Node, asked: Question) -> None:
    """Ask for the account of a new record where the rule does: references lead to records there."""
    left = rules.walk(rules.partial_evaluate(node, asked.asker))
    paths = {part.path for part in left if isinstance(part, rules.Name)}
    if all(len(path) == 1 and path != ("account_id",) for path in paths):
        return
    if asked.account_id is None:
        raise InvalidValues([problem(ACCOUNT, "required", NO_ACCOUNT)])
    account = principals.reload_active_account(asked.account_id)
    if account is None or account.id != asked.account_id:
        raise InvalidValues([problem(ACCOUNT, "invalid_reference", LOST_ACCOUNT)])


def _made_ready(collection: Definition, asked: Question, before: Row | None) -> JSONObject:
    found: list[JSONObject] = []
    given = changes.new_system_values([asked.account_id], asked.asker.id)[0]
    body = asked.data or {}
    if before is None:
        row = values.clean_create(collection, body, given, found)
    else:
        stamp = {"updated_at": given["updated_at"], "updated_by": given["updated_by"]}
        body = values.without_echoed_masks(
            collection, before, body, _seen_masked(collection, asked.asker, before)
        )
        row = {**before, **values.clean_update(collection, before, body, found), **stamp}
    if found:
        raise InvalidValues([{**one, "field": f"data.{one['field']}"} for one in found])
    return row


def _seen_masked(collection: Definition, asker: rules.Asker, row: Row) -> set[str]:
    """The fields of a record that the caller sees masked, where it views or lists it."""
    found: set[str] = set()
    if not masking.masks_for(asker):
        return found
    for operation in ("view", "list"):
        node, opened = collection.conditions[operation], collection.field_list(operation)
        if node is None:
            sees = _by_form(collection.rule(operation), asker)["allowed"]
        else:
            led = references.resolve(collection, [row], access.dotted_names(node))[0]
            sees = rules.holds(node, rules.Context(led, asker, now=clock.now()))
        if sees:
            found |= collection.personal.intersection(
                collection.columns if opened == ALL_FIELDS else opened
            )
    return found


def _by_rule(node: rules.Node, rule: str, asked: Question, case: _Case) -> JSONObject:
    context = case.context(asked.asker)
    allowed = rules.surely(node, context)
    if allowed is None:
        return _undecided(node, rule, asked, context)
    clause = rules.deciding(node, rule, context)
    words = "" if allowed else case.words
    reason = f"`{clause.text}` {'holds' if clause.holds else 'does not hold'}{words}."
    return {"allowed": allowed, "reason": reason, "clause": _shown(clause)}


def _undecided(node: rules.Node, rule: str, asked: Question, context: rules.Context) -> JSONObject:
    part = rules.undecided(node, context)
    kinds = {type(one) for one in rules.walk(part)} & set(context.unknown)
    record = "the new record" if asked.operation == "create" else "the record"
    words = {rules.Name: record, rules.Sent: "what is sent"}
    on = " and on ".join(word for kind, word in words.items() if kind in kinds)
    source = rule[part.start : part.end]
    return {"allowed": None, "reason": f"It depends on {on}.", "depends_on": source}


def _statement(collection: Definition, node: rules.Node, asked: Question) -> JSONObject:
    """What finds the records for which the rule holds, as the database is sent it."""
    table = collection.table
    compiled = sql.condition(
        rules.partial_evaluate(node, asked.asker), TableColumns(collection, table)
    )
    scoped = store.scope(collection, asked.account_id, compiled.expression)
    scoped += [table.c.id == asked.record_id] if asked.record_id is not None else []
    built = sa.select(table.c.id).where(*scoped).compile(dialect=_dialect())
    sent = values.clean_valid(collection, asked.data or {})
    bound = built.construct_params(compiled.parameters(asked.asker, sent))
    return {"sql": str(built), "parameters": {name: _json(one) for name, one in bound.items()}}


def _dialect() -> Dialect:
    dialect = engine.current_engine().dialect
    # SQLite takes parameters by name as well as by place, which tells less.
    return sqlite.dialect(paramstyle="named") if dialect.positional else dialect


def _shown(clause: rules.Clause) -> JSONObject:
    looked_at = {text: _json(value) for text, value in clause.values.items()}
    plain = {"text": clause.text, "position": clause.position, "holds": clause.holds}
    return plain | {"values": looked_at}


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.isoformat() if isinstance(value, date) else value
