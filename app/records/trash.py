"""Deleted records of collections with `options.trash`: lists, restoring, deleting for good.

Whoever may delete a record sees it in the trash, if the list rule admits it, brings it back, and
deletes it for good: it is judged as it was, and what rules ask of other records counts for nothing,
as these may be gone (`rules.decided_alone`). A record that comes back is as it was, but for
`updated_at` and `updated_by`. It has to fit what the collection is by now: its schema, unique
keys, references. One that neither needs a value nor is named by a rule loses a target that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
from app.records.store import Row, reads, writes
from app.records.store import trash as stored
from app.records.write import changes, values
from app.records.write.changes import Change
from app.records.write.values import Body, Problems
from app.types import JSONMapping, JSONObject
from app.web.preconditions import ANY_VERSION, Preconditions

PIECE = 500
ACTOR = Actor("trash", "trash", "trash")
NOT_THERE = "This record is not in the trash."
UNFIT = "A field that you may not see keeps this record from coming back."
LOST = "_lost"
READING = ("view", "list")
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
        seen, trash = _readable(definition, by).union(given), trashes.of(definition)
        change = _change(definition, row, given, problems, by) if given else None
        now = {"updated_at": clock.now(), "updated_by": by.user_id}
        changed = {**row, **change.values[0]} if change else row
        sent = change.values[0].keys() if change else ()
        fitting, lost = _fitting(definition, changed, sent, seen, problems)
        new = {**fitting, **now}
        if clashes := reads.find_conflicts(definition, [new]):
            judged = _judged(new, row)
            if change and not changes.is_allowed(change.access, judged, change.sent[0]):
                raise change.access.refusal()  # who may not have the value does not learn of it
            visible = [names for names in clashes[0] if seen.issuperset(names)]
            raise _conflict(changes.not_unique(visible), hides=len(visible) < len(clashes[0]))
        try:
            record = writes.insert(definition, [new])[0]
            links.follow(definition, (), [new])
        except IntegrityError as error:  # taken, or a target gone, a moment ago
            raise versioned_cache.Stale from error
        judged = _judged(record, row)
        if change and not views.rule_matches(change.access, [judged], change.sent)[0]:
            raise change.access.refusal()
        if not _sees(trash, row, by) and _sees(definition, record, by):
            raise NotFound(NOT_THERE)  # it would open what was hidden from the caller
        stored.forget(definition, [record])
        changes.announce(definition, "create", record, None, by, is_restored=True)
        view = views.render_written(definition, [record], by)[0]
        if shown := [name for name in lost if name in seen]:
            view[LOST] = shown
        return view


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
        raise deleting.refusal() if _sees(trash, row, by, "view") else NotFound(NOT_THERE)
    if conditions:
        viewing = views.view_access(definition, by) if _sees(trash, row, by, "view") else None
        conditions.check(views.render_full(row, viewing).etag)
    return row


def _sees(definition: Definition, row: Row, by: Principal, *operations: str) -> bool:
    """Whether the caller may view or list a record."""
    found = (accesses.if_open(by, definition, one) for one in operations or READING)
    return any(one is not None and views.rule_matches(one, [row])[0] for one in found)


def _readable(definition: Definition, by: Principal) -> frozenset[str]:
    """The fields that the caller may see, in one way or another."""
    found = (accesses.if_open(by, definition, one) for one in READING)
    return frozenset(name for one in found if one is not None for name in one.readable)


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
    """An update of a record in the trash, validated, under the rule as it is judged there.

    Raises NotFound, Forbidden.
    """
    access = accesses.for_operation(by, definition, "update")
    judging = accesses.for_operation(by, trashes.of(definition), "update")
    bodies = values.with_list_changes(access, [row], [given])
    changes.check_rule(judging, [row], values.rule_inputs(access, bodies), problems)
    change = changes.prepare_update(access, [row], [given], problems, in_trash=True)
    return replace(change, access=judging)


def _judged(new: JSONMapping, row: JSONMapping) -> JSONObject:
    return {**row, **new, rules.OLD: row}


def _fitting(
    definition: Definition,
    row: JSONMapping,
    changed: Iterable[str],
    seen: frozenset[str],
    problems: Problems,
) -> tuple[JSONObject, Sequence[str]]:
    """The values to insert, and the references that lose a target.

    Raises InvalidValues, and Conflict for a target that is needed: also by a rule, which without
    it may open the record. What is changed was checked with its change.
    """
    names = (*(name for name in views.SYSTEM_COLUMNS), *definition.fields)
    new, found = {name: row[name] for name in names}, list[JSONObject]()
    needed, lost = list[str](), list[str]()
    known = {*changed, *(one["field"] for one in problems.collected.first())}
    ruled = _ruled(definition)
    for name, field in definition.fields.items():
        if new[name] is None:
            new[name] = field.column_default if field.required else None
        elif name not in known and not isinstance(field, FileField):
            try:
                field.clean(_as_sent(field, new[name]))
            except InvalidValue as error:
                found.append(problem(name, error.code, str(error)))
        if (target := definition.references.get(name)) and new[name] is not None:
            ids = entries(field, new[name])
            there = values.existing(target, row["account_id"], {*ids})
            if definition.target(name) is definition:
                there.add(row["id"])
            left = [id for id in ids if id in there]
            if len(left) < len(ids):
                new[name] = left if field.multiple else None
                is_needed = name in ruled or (field.required and not left)
                (needed if is_needed else lost).append(name)
        elif new[name] is None and field.required and name not in known:
            found.append(problem(name, "required_missing", "This field is required."))
    visible = [one for one in found if one["field"] in seen]
    hidden = [problem(None, "field_denied", UNFIT)] if len(visible) < len(found) else []
    problems.add(0, [*visible, *hidden])
    problems.check()
    if needed:
        details = [
            problem(one, "invalid_reference", TARGET_AWAY.format(definition.references[one]))
            for one in needed
            if one in seen
        ]
        raise _conflict(details, hides=len(details) < len(needed))
    return new, lost


def _conflict(details: Sequence[JSONObject], *, hides: bool) -> Conflict:
    """The conflict of a record that comes back; of fields that the caller may not see, no names."""
    all_ = [*details, problem(None, "field_denied", UNFIT)] if hides else details
    return Conflict(all_[0]["message"], field=all_[0]["field"], details=all_)


def _ruled(definition: Definition) -> frozenset[str]:
    """The fields that rules of the records read, also by way of computed ones."""
    rules_ = (definition.conditions[one] for one in rules.OPERATIONS if one != "create")
    parts = [part for rule in rules_ if rule is not None for part in rules.walk(rule)]
    names = {part.path[0] for part in parts if isinstance(part, rules.Name | rules.Old)}
    return frozenset(names.union(*map(definition.inputs, names)))


def _as_sent(field: Field, value: Any) -> object:
    if field.rule_type in audit_view.STORED_AS_JSON and isinstance(value, str):
        return orjson.loads(value)
    return field.shown(value)


def _forget(definition: Definition, account_id: str, ids: Sequence[str]) -> None:
    removed = stored.forget(definition, [{"account_id": account_id, "id": id} for id in ids])
    audit.record_purged(definition, account_id, removed)


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
                while _purge_piece(definition, account_id, due):
                    pass


def _purge_piece(definition: Definition, account_id: str, due: Sequence[Any]) -> bool:
    """Whether there was anything to delete. Locked, so that nothing is restored meanwhile."""
    query = sa.select(TRASH.c.id).where(TRASH.c.account_id == account_id, *due).limit(PIECE)
    with db.transaction():
        ids = db.connection().scalars(query.with_for_update()).all()
        if ids:
            _forget(definition, account_id, ids)
    return bool(ids)


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
