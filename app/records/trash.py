"""Deleted records of collections with `options.trash`: lists, restoring, deleting for good.

Whoever may delete a record sees it in the trash, if the list rule admits it, brings it back, and
deletes it for good: it is judged as it was. A record that comes back is as it was, but for
`updated_at` and `updated_by`. It has to fit what the collection is by now: its schema, unique
keys, references. A reference that needs no value loses a target that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import clock, db, events, jobs, rules
from app.audit import append
from app.audit import records as audit
from app.auth import signatures
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions, links
from app.collections import trash as trashes
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE, Field, FileField, InvalidValue, entries
from app.collections.trash import TRASH
from app.context import actor, tenancy
from app.context.actor import Actor
from app.db import versioned_cache
from app.errors import Conflict, NotFound, problem
from app.records import service
from app.records.history import audit_view
from app.records.read import views
from app.records.read.views import RecordView
from app.records.store import reads, writes
from app.records.store import trash as stored
from app.records.write import changes, values
from app.records.write.changes import Change
from app.records.write.values import Body, Problems
from app.types import JSONMapping, JSONObject
from app.web.preconditions import ANY_VERSION, Preconditions

PIECE = 500
ACTOR = Actor("trash", "trash", "trash")
NOT_THERE = "This record is not in the trash."
TARGET_AWAY = "What this refers to in {} is gone, or in the trash: restore that first."
NO_TRASH = "This collection has no trash."


def restore(
    collection: str,
    record_id: str,
    given: Body = views.EMPTY,
    *,
    conditions: Preconditions = ANY_VERSION,
    by: Principal,
) -> RecordView:
    """Bring a record back under its id, with given values in the place of its own.

    These are judged as an update of the record. Raises NotFound, Forbidden, Conflict,
    InvalidValues, PreconditionFailed, QuotaExceeded.
    """
    with service.transaction(collection, by) as definition:
        row, problems = _locked(definition, record_id, by, conditions), Problems()
        changes.check_quotas(by, 1)
        change = _change(definition, row, given, problems, by) if given else None
        now = {"updated_at": clock.now(), "updated_by": by.user_id}
        changed = {**row, **change.values[0]} if change else row
        new = {**_fitting(definition, changed, given, problems), **now}
        if clashes := reads.find_conflicts(definition, [new]):
            if change and not changes.is_allowed(change.access, _judged(new, row), change.sent[0]):
                raise change.access.refusal()  # who may not have the value does not learn of it
            details = changes.not_unique(clashes[0])
            message = details[0]["message"]
            raise Conflict(message, field=details[0]["field"], details=details)
        try:
            record = writes.insert(definition, [new])[0]
            links.follow(definition, (), [new])
        except IntegrityError as error:  # taken, or a target gone, a moment ago
            raise versioned_cache.Stale from error
        if change and not views.rule_matches(change.access, [_judged(record, row)], change.sent)[0]:
            raise change.access.refusal()
        stored.forget(definition, [record])
        changes.announce(definition, "create", record, None, by, is_restored=True)
        return views.render_written(definition, [record], by)[0]


def delete(
    collection: str, record_id: str, *, conditions: Preconditions = ANY_VERSION, by: Principal
) -> None:
    """Delete a record for good, from the trash if it is there. Raises as `service.delete` does."""
    try:
        service.delete(collection, record_id, conditions=conditions, by=by, permanently=True)
    except NotFound:
        if not has(definitions.get(collection), record_id, by=by):
            raise
        purge(collection, record_id, conditions=conditions, by=by)


def purge(
    collection: str, record_id: str, *, conditions: Preconditions = ANY_VERSION, by: Principal
) -> None:
    """Delete a record in the trash for good.

    Raises NotFound, PreconditionFailed, SignatureRequired.
    """
    with service.transaction(collection, by) as definition:
        row = _locked(definition, record_id, by, conditions)
        if definition.options.get("require_signature"):
            signatures.require()
        _forget(definition, row["account_id"], [row["id"]])


def has(definition: Definition, record_id: str, *, by: Principal) -> bool:
    """Whether a record is in the trash of the caller's account."""
    if not definition.trash_days:
        return False
    mine = (TRASH.c.account_id == by.require_account_id(), TRASH.c.collection_id == definition.id)
    query = sa.select(TRASH.c.id).where(*mine, TRASH.c.id == record_id)
    return db.connection().scalar(query) is not None


def check_deletable(definition: Definition, record_id: str, *, by: Principal) -> None:
    """Check that the caller may delete a record in the trash. Raises NotFound, or a refusal."""
    _locked(definition, record_id, by)


def _locked(
    definition: Definition,
    record_id: str,
    by: Principal,
    conditions: Preconditions = ANY_VERSION,
) -> JSONObject:
    """A record in the trash that the caller may delete. Raises NotFound, or what the rule says."""
    if not definition.trash_days:
        raise NotFound(NO_TRASH)
    trash = trashes.of(definition)
    deleting = accesses.for_operation(by, trash, "delete")
    found = stored.lock(definition, by.require_account_id(), record_id.lower())
    if found is None:
        raise NotFound(NOT_THERE)
    row = _decoded(trash, found)
    if not views.rule_matches(deleting, [row])[0]:
        viewing = views.view_access(trash, by)
        is_visible = viewing is not None and views.rule_matches(viewing, [row])[0]
        raise deleting.refusal() if is_visible else NotFound(NOT_THERE)
    changes.check_etag(accesses.for_operation(by, definition, "delete"), row, conditions)
    return row


def _decoded(definition: Definition, found: Any) -> JSONObject:
    row: JSONObject = {name: getattr(found, name) for name in trashes.FROM_ROW}
    for name in stored.KEPT:
        text = found.record.get(name)
        row[name] = clock.parse(text) if text and name.endswith("_at") else text
    for name, field in definition.fields.items():
        row[name] = audit_view.to_stored(field, found.record.get(name, _default(field)))
    return audit_view.with_computed(definition, row)


def _default(field: Field) -> str | None:
    """What a field that is newer than the deletion would have in the record."""
    return append.text(field.column_default)


def _change(
    definition: Definition, row: JSONObject, given: Body, problems: Problems, by: Principal
) -> Change:
    """An update of a record in the trash, validated. Raises NotFound, Forbidden."""
    access = accesses.for_operation(by, definition, "update")
    bodies = values.with_list_changes(access, [row], [given])
    changes.check_rule(access, [row], values.rule_inputs(access, bodies), problems)
    return changes.prepare_update(access, [row], [given], problems, in_trash=True)


def _judged(new: JSONMapping, row: JSONMapping) -> JSONObject:
    return {**row, **new, rules.OLD: row}


def _fitting(
    definition: Definition, row: JSONMapping, given: Body, problems: Problems
) -> JSONObject:
    """The values to insert. Raises InvalidValues, and Conflict for a target that is needed.

    Problems of given values are known already.
    """
    names = (*(name for name in views.SYSTEM_COLUMNS), *definition.fields)
    new, found, lost = {name: row[name] for name in names}, list[JSONObject](), list[str]()
    for name, field in definition.fields.items():
        if new[name] is None:
            new[name] = field.column_default if field.required else None
        elif name not in given and not isinstance(field, FileField):
            try:
                field.clean(_as_sent(field, new[name]))
            except InvalidValue as error:
                found.append(problem(name, error.code, str(error)))
        if (target := definition.references.get(name)) and new[name] is not None:
            ids = entries(field, new[name])
            there = values.existing(target, row["account_id"], {*ids})
            left = [id for id in ids if id in there]
            if len(left) < len(ids):
                new[name] = left if field.multiple else None
            if ids and not left and field.required:
                lost.append(name)
        elif new[name] is None and field.required and name not in given:
            found.append(problem(name, "required_missing", "This field is required."))
    problems.add(0, found)
    problems.check()
    if lost:
        details = [
            problem(one, "invalid_reference", TARGET_AWAY.format(definition.references[one]))
            for one in lost
        ]
        raise Conflict(details[0]["message"], field=lost[0], details=details)
    return new


def _as_sent(field: Field, value: Any) -> object:
    if field.rule_type in audit_view.STORED_AS_JSON and isinstance(value, str):
        return orjson.loads(value)
    return field.shown(value)


def _forget(definition: Definition, account_id: str, ids: Sequence[str]) -> None:
    rows = [{"account_id": account_id, "id": id} for id in ids]
    stored.forget(definition, rows)
    audit.record_purged(definition, account_id, len(ids))


@jobs.periodic(3600, "trash.purge")
def purge_old(payload: JSONMapping) -> None:
    """Delete for good what has been in the trash for its time; each piece is a transaction."""
    for definition in definitions.get_all():
        if not definition.trash_days:
            continue
        before = clock.now() - timedelta(days=definition.trash_days)
        due = (TRASH.c.collection_id == definition.id, TRASH.c.deleted_at < before)
        accounts = sa.select(TRASH.c.account_id).where(*due).distinct()
        with tenancy.across_accounts():
            found = db.connection().scalars(accounts).all()
        for account_id in found:
            with actor.acting(ACTOR), tenancy.in_account(account_id):
                for ids in _pieces(account_id, due):
                    with db.transaction():
                        _forget(definition, account_id, ids)


def _pieces(account_id: str, due: Sequence[Any]) -> Iterator[Sequence[str]]:
    query = sa.select(TRASH.c.id).where(TRASH.c.account_id == account_id, *due)
    while ids := db.connection().scalars(query.limit(PIECE)).all():
        yield ids


@events.subscribe(events.RecordErased)
def _erase(event: events.RecordErased) -> None:
    mine = (TRASH.c.account_id == event.account_id, TRASH.c.id == event.record_id)
    db.connection().execute(sa.delete(TRASH).where(*mine))


@events.subscribe(events.UserErased)
def _erase_of_user(event: events.UserErased) -> None:
    """Delete what goes with a user, and take the user out of the rest."""
    mine = TRASH.c.account_id == event.account_id
    by_user = sa.update(TRASH).where(mine, TRASH.c.deleted_by == event.user_id)
    db.connection().execute(by_user.values(deleted_by=None))
    for definition in definitions.get_all():
        people = [one for one in definition.fields.values() if one.leads_to == PEOPLE]
        names = [*definitions.PERSONS, *(one.name for one in people)]
        mentions = (TRASH.c.record[name].as_string().contains(event.user_id) for name in names)
        own = (mine, TRASH.c.collection_id == definition.id)
        query = sa.select(TRASH.c.id, TRASH.c.record).where(*own, sa.or_(*mentions))
        for id, texts in db.connection().execute(query).all() if definition.trash_days else ():
            rest = _without_user(texts, people, event.user_id)
            this = (*own, TRASH.c.id == id)
            change = sa.delete(TRASH) if rest is None else sa.update(TRASH).values(record=rest)
            db.connection().execute(change.where(*this))


def _without_user(texts: JSONMapping, people: Sequence[Field], user_id: str) -> JSONObject | None:
    """The values of a record without a user; None if it goes with the user."""
    rest = dict(texts)
    for name in definitions.PERSONS:
        rest[name] = None if rest[name] == user_id else rest[name]
    for field in people:
        ids = entries(field, audit_view.to_stored(field, rest.get(field.name)))
        if user_id in ids:
            left = [id for id in ids if id != user_id]
            rest[field.name] = append.text(left) if field.multiple else None
            if field.on_delete == "cascade":
                return None
    return rest
