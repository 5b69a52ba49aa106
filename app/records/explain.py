"""Explains which part of a rule lets a caller do something, or refuses it.

Only for authors of rules: other answers never say which clause refused. Records to create or change
are validated as a write does it, and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from app import clock, db, rules
from app.auth import principal as principals
from app.collections import access, masking
from app.collections.columns import TableColumns
from app.collections.definitions import ALL_FIELDS, NEVER, Definition, ViewDefinition
from app.context import shown_accounts
from app.db import engine, versioned_cache
from app.errors import Forbidden, InvalidValues, NotFound, ViewReadOnly, problem
from app.files import ownership
from app.records import store
from app.records.store import Row, reads, references
from app.records.write import changes, values
from app.rules import sql
from app.rules.nodes import Junction
from app.types import JSONMapping, JSONObject

WRITE_OPERATIONS = ("create", "update")
ACCOUNT = "auth.account_id"
ACCOUNT_MISSING = "The rule asks for the account of the new record: name it."
ACCOUNT_NOT_FOUND = "There is no such active account."


@dataclass(frozen=True)
class Question:
    """An operation, its caller, and the record and body that it is about."""

    operation: str
    subject: rules.Subject
    account_id: str | None
    """The account of the records; None is all."""
    record_id: str | None = None
    data: JSONMapping | None = None
    """The body that would be sent; None if it is unknown."""


@dataclass(frozen=True)
class _Case:
    """A record and body to check the rule for; None where they are unknown."""

    record: Row | None
    sent: JSONMapping | None
    suffix: str = ""
    """Ends the reason of a refusal."""
    collection: Definition | None = None

    def context(self, caller: rules.Subject) -> rules.Context:
        unknown: list[type[rules.Node]] = []
        unknown += [rules.Name, rules.Old, rules.Subquery] if self.record is None else []
        unknown += [rules.Sent] if self.sent is None else []
        return rules.Context(
            self.record or {}, caller, self.sent or {}, clock.now(), tuple(unknown)
        )


def explain(collection: Definition, question: Question) -> JSONObject:
    """Return whether a caller may do it, and what decides.

    Of a view, the list rule of what it reads comes first, then its `where`, then its own rule.
    Raises NotFound, and InvalidValues where a write would.
    """
    if isinstance(collection, ViewDefinition):
        return _of_view(collection, question)
    return _verdict(collection, question, _load_record(collection, question))


def _of_view(view: ViewDefinition, question: Question) -> JSONObject:
    """What refuses first; else what cannot be decided, or the view's own rule."""
    base, own_rule = view.base, view.rule(question.operation)
    if question.operation not in ("list", "view"):
        return _result(view, question, own_rule) | {
            "allowed": False,
            "reason": ViewReadOnly.message,
        }
    record_id = None if view.is_grouped else question.record_id
    listing = replace(question, operation="list", record_id=record_id)
    found = explain(base, listing)
    if found["allowed"] is not False and view.narrowed is not None:
        where = replace(base, rules={**base.rules, "list_rule": view.view["where"]})
        stored = _load_record(base, listing)
        narrowed = _result(base, question, where.rule("list"))
        narrowed |= _statement(base, view.narrowed, question)
        narrowed |= next(_by_expression(where, view.narrowed, listing, stored))
        found = found if found["allowed"] is None and narrowed["allowed"] else narrowed
    if found["allowed"] is False:
        return found
    try:
        caller = principals.as_caller(question.subject, question.account_id)
        own = access.of_view(caller, view, question.operation)
    except Forbidden as error:  # of what rows have in common
        return _result(view, question, own_rule) | {"allowed": False, "reason": error.message}
    row = None
    within = {"_account": question.account_id, **own.within}
    if question.record_id is not None:
        query = sa.select(*own.definition.selected).where(
            *store.scope(own.definition, question.account_id),
            own.definition.table.c.id == question.record_id,
        )
        values_ = db.connection().execute(query, within).first()
        if values_ is None:
            raise NotFound(changes.NO_RECORD)
        row = dict(zip(own.definition.columns, values_, strict=True))
        shown_accounts.note(str(row["account_id"]))
    verdict = _verdict(own.definition, question, row, within)
    is_open = found["allowed"] is None and verdict["allowed"] is not False and not view.is_grouped
    return found if is_open else verdict


def _result(collection: Definition, question: Question, rule: str | None) -> JSONObject:
    result = {"collection": collection.name, "operation": question.operation, "rule": rule}
    return result | {"clause": None, "sql": None, "parameters": None}


def _verdict(
    collection: Definition,
    question: Question,
    stored: Row | None,
    within: JSONMapping = store.NO_PARAMETERS,
) -> JSONObject:
    """What the rule of one collection says; `within` are the parameters of a view's table."""
    node = collection.conditions[question.operation]
    result = _result(collection, question, collection.rule(question.operation))
    if node is None or question.subject.is_superadmin:
        verdicts = _without_expression(collection, question, stored)
    elif node is NEVER:
        reason = "The rule does not fit the schema any more: closed to all but superadmins."
        verdicts = iter([{"allowed": False, "reason": reason}])
    else:
        result |= _statement(collection, node, question, within)
        verdicts = _by_expression(collection, node, question, stored)
    for verdict in verdicts:
        if verdict["allowed"] is False:
            break
    return result | verdict


def _without_expression(
    collection: Definition, question: Question, stored: Row | None
) -> Iterator[JSONObject]:
    yield _decide_without_rule(collection.rule(question.operation), question.subject)
    yield from _check_field_list(collection, question)
    # A superadmin's body may name an account that the question does not.
    if _has_result(question, stored) and not question.subject.is_superadmin:
        _prepared_row(collection, question, stored)


def _by_expression(
    collection: Definition, node: rules.Node, question: Question, stored: Row | None
) -> Iterator[JSONObject]:
    """Yield the verdicts of a write, in its order."""
    rule = collection.rule(question.operation) or ""
    if stored is not None:
        names = access.dotted_names(node)
        stored = {**stored, **references.resolve_one(collection, stored, names)}
    case = _current_case(collection, question, stored)
    judges_change = question.operation == "update" and rules.names_old(node)
    if not (judges_change and _has_result(question, stored)):
        yield _evaluate_rule(node, rule, question, _answered(collection, node, question, case))
    yield from _check_field_list(collection, question)
    if _has_result(question, stored):
        case = _resulting_case(collection, node, question, stored)
        yield _evaluate_rule(node, rule, question, _answered(collection, node, question, case))


def _answered(collection: Definition, node: rules.Node, question: Question, case: _Case) -> _Case:
    """The case with what the rule's `@any` find for it."""
    subqueries = list(rules.subqueries(node))
    if case.record is None or not subqueries:
        return replace(case, collection=collection)
    sent = [case.sent or {}]
    found = references.answers(collection, [case.record], subqueries, question.subject, sent)
    return replace(case, record=found[0], collection=collection)


def _has_result(question: Question, stored: Row | None) -> bool:
    return question.data is not None and (question.operation == "create" or stored is not None)


def _load_record(collection: Definition, question: Question) -> Row | None:
    if question.record_id is None:
        return None
    row = reads.read_one(
        collection, question.account_id, question.record_id, versioned_cache.NO_CHECKS
    )
    if row is None:
        raise NotFound(changes.NO_RECORD)
    shown_accounts.note(str(row["account_id"]))
    return row


def _decide_without_rule(rule: str | None, caller: rules.Subject) -> JSONObject:
    if caller.is_superadmin:
        return {"allowed": True, "reason": "Superadmins pass every rule."}
    if rule is None:
        return {"allowed": False, "reason": "The rule is null: closed to all but superadmins."}
    if rule == "":
        return {"allowed": True, "reason": "The rule is empty: open to everyone."}
    signed_in = caller.id is not None
    reason = "The rule is true: open to whoever has signed in to the account."
    return {"allowed": signed_in, "reason": reason}


def _check_field_list(collection: Definition, question: Question) -> Iterator[JSONObject]:
    opened, data = collection.field_list(question.operation), question.data or {}
    if question.subject.is_superadmin:
        return
    sent = [name for name in collection.fields if name in data]
    denied = [name for name in sent if opened != ALL_FIELDS and name not in opened]
    if denied:
        reason = f"The field list of the operation does not open: {', '.join(denied)}."
        yield {"allowed": False, "reason": reason}
    closed = access.closed_fields(question.subject, collection, "writable_if")
    if refused := [name for name in sent if name in closed]:
        reason = f"Their writable_if does not let the caller write: {', '.join(refused)}."
        yield {"allowed": False, "reason": reason}


def _current_case(collection: Definition, question: Question, stored: Row | None) -> _Case:
    """Return the record and body that the rule is checked for before a change."""
    if question.operation not in WRITE_OPERATIONS:
        return _Case(stored, {})  # nothing is sent
    if question.data is None or question.operation == "create":
        return _Case(stored, None)
    suffix = "" if stored is None else " for the record as it is"
    return _Case(stored, values.clean_valid(collection, question.data), suffix)


def _resulting_case(
    collection: Definition, node: rules.Node, question: Question, stored: Row | None
) -> _Case:
    if stored is None:
        _check_account(node, question)
    after = _prepared_row(collection, question, stored)
    after |= references.resolve_one(collection, after, access.dotted_names(node))
    after |= {} if stored is None else {rules.OLD: stored}
    suffix = "" if stored is None else " for the record as it would be"
    return _Case(after, values.clean_valid(collection, question.data or {}), suffix)


def _check_account(node: rules.Node, question: Question) -> None:
    """Require the account of a new record if the rule reads it, or follows references in it."""
    left = rules.partial_evaluate(node, question.subject)
    paths = {part.path for part in rules.walk(left) if isinstance(part, rules.Name)}
    if not any(rules.subqueries(left)) and all(
        len(path) == 1 and path != ("account_id",) for path in paths
    ):
        return
    if question.account_id is None:
        raise InvalidValues([problem(ACCOUNT, "required", ACCOUNT_MISSING)])
    account = principals.reload_active_account(question.account_id)
    if account is None or account.id != question.account_id:
        raise InvalidValues([problem(ACCOUNT, "invalid_reference", ACCOUNT_NOT_FOUND)])


def _prepared_row(collection: Definition, question: Question, stored: Row | None) -> JSONObject:
    problems: list[JSONObject] = []
    system_values = changes.new_system_values([question.account_id], question.subject.id)[0]
    body = question.data or {}
    if stored is None:
        row = values.clean_create(collection, body, system_values, problems, question.subject)
    else:
        audit_columns = {
            "updated_at": system_values["updated_at"],
            "updated_by": system_values["updated_by"],
        }
        body = values.without_echoed_masks(
            collection, stored, body, _masked_for_caller(collection, question.subject, stored)
        )
        row = {**stored, **values.clean_update(collection, stored, body, problems), **audit_columns}
    if collection.files:
        problems += ownership.describe(collection, row, str(row["account_id"]))
    if problems:
        raise InvalidValues([{**item, "field": f"data.{item['field']}"} for item in problems])
    return row


def _masked_for_caller(collection: Definition, caller: rules.Subject, row: Row) -> set[str]:
    """Return the fields of a record that the caller sees masked when viewing or listing it."""
    masked: set[str] = set()
    if not masking.masks_for(caller):
        return masked
    for operation in ("view", "list"):
        node, field_list = collection.conditions[operation], collection.field_list(operation)
        if node is None:
            is_visible = _decide_without_rule(collection.rule(operation), caller)["allowed"]
        else:
            linked = references.resolve(collection, [row], access.dotted_names(node))
            subqueries = list(rules.subqueries(node))
            if subqueries:
                linked = references.answers(collection, linked, subqueries, caller, [{}])
            is_visible = rules.holds(node, rules.Context(linked[0], caller, now=clock.now()))
        if is_visible:
            masked |= collection.personal.intersection(
                collection.columns if field_list == ALL_FIELDS else field_list
            )
    return masked - access.closed_fields(caller, collection, "readable_if")


def _evaluate_rule(node: rules.Node, rule: str, question: Question, case: _Case) -> JSONObject:
    context = case.context(question.subject)
    allowed = rules.surely(node, context)
    if allowed is None:
        return _undecided(node, rule, question, context)
    clause = rules.deciding(node, rule, context)
    suffix = "" if allowed else case.suffix
    reason = f"`{clause.text}` {'holds' if clause.holds else 'does not hold'}{suffix}."
    values_read = {text: _json(value) for text, value in clause.values.items()}
    view = {"text": clause.text, "position": clause.position, "holds": clause.holds}
    view["subqueries"] = [_matches(one, rule, question, case) for one in clause.subqueries]
    return {"allowed": allowed, "reason": reason, "clause": {**view, "values": values_read}}


def _matches(subquery: rules.Subquery, rule: str, question: Question, case: _Case) -> JSONObject:
    """Return how many records meet the conditions of an `@any` up to each of them."""
    inner, counted = subquery.condition, list[rules.Subquery]()
    conditions = (
        inner.parts if isinstance(inner, Junction) and inner.operator == "and" else (inner,)
    )
    for n in range(len(conditions)):
        first = inner
        if len(conditions) > 1:
            first = Junction(inner.start, inner.end, "and", conditions[: n + 1], type=inner.type)
        counted.append(replace(subquery, function="count", condition=first, type=rules.Type.NUMBER))
    found: Any = {}
    if case.collection is not None and case.record is not None:
        about = (case.collection, [case.record], counted, question.subject)
        (found,) = references.answers(*about, [case.sent or {}])
    text = rule[subquery.start : subquery.end]
    steps = [
        {"text": rule[part.start : part.end], "position": part.start, "records": found.get(one)}
        for part, one in zip(conditions, counted, strict=True)
    ]
    return {"text": text, "position": subquery.start, "conditions": steps}


def _undecided(
    node: rules.Node, rule: str, question: Question, context: rules.Context
) -> JSONObject:
    part = rules.undecided(node, context)
    kinds = {type(node_) for node_ in rules.walk(part)} & set(context.unknown)
    record = "the new record" if question.operation == "create" else "the record"
    others = "other records"
    descriptions = {
        rules.Name: record,
        rules.Old: record,
        rules.Sent: "what is sent",
        rules.Subquery: others,
    }
    words = (word for kind, word in descriptions.items() if kind in kinds)
    dependencies = " and on ".join(dict.fromkeys(words))
    source = rule[part.start : part.end]
    return {"allowed": None, "reason": f"It depends on {dependencies}.", "depends_on": source}


def _statement(
    collection: Definition,
    node: rules.Node,
    question: Question,
    within: JSONMapping = store.NO_PARAMETERS,
) -> JSONObject:
    """Return the statement that finds the records for which the rule holds."""
    table = collection.table
    account = None if question.account_id is None else sql.ACCOUNT
    columns = TableColumns(collection, table, account=account)
    compiled = sql.condition(rules.partial_evaluate(node, question.subject), columns)
    scoped = store.scope(collection, question.account_id, compiled.expression)
    scoped += [table.c.id == question.record_id] if question.record_id is not None else []
    dialect = engine.current_engine().dialect
    if dialect.positional:  # SQLite, which takes parameters by name as well; that says more
        dialect = sqlite.dialect(paramstyle="named")
    statement = sa.select(table.c.id).where(*scoped).compile(dialect=dialect)
    body = values.clean_valid(collection, question.data or {})
    parameters = statement.construct_params(
        {**within, **compiled.parameters(question.subject, body, question.account_id)}
    )
    return {
        "sql": str(statement),
        "parameters": {name: _json(value) for name, value in parameters.items()},
    }


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return clock.iso(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, date) else value
