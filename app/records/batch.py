"""Many records in one request: all of them or none, in a few statements."""

from __future__ import annotations

from collections.abc import Sequence

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections.definitions import Definition
from app.collections.fields import Field, InvalidValue
from app.db import versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.records import service, store
from app.records.read import views
from app.records.read.views import RecordView
from app.records.store import writes
from app.records.write import cascade, changes, values
from app.records.write.values import Body, Problems
from app.types import JSONMapping

DUPLICATE = "Another record of this request has the same."


def create(
    collection: str,
    bodies: Sequence[Body],
    *,
    by: Principal,
    record_ids: Sequence[str] | None = None,
) -> list[RecordView]:
    """Store new records; `record_ids` restores deleted ones under their ids.

    Raises what `service.create` raises, with the places of the records.
    """
    with service.unverified_transaction(collection, by) as (definition, unchecked):
        problems = Problems(range(len(bodies)))
        change = changes.prepare_create(definition, bodies, problems, by, record_ids)
        changes.check_batch(change)
        return changes.save(change, unchecked)


def update(collection: str, items: Sequence[JSONMapping], *, by: Principal) -> list[RecordView]:
    """Set the fields that were sent for each `{id, data}`. Raises what `service.patch` raises."""
    ids, bodies = [item["id"] for item in items], [item["data"] for item in items]
    problems = Problems(range(len(items)))
    _check_once("id", ids, problems)
    problems.check()
    with service.transaction(collection, by) as definition:
        access = accesses.for_operation(by, definition, "update")
        rows = changes.lock_for_change(access, ids, bodies, problems)
        change = changes.prepare_update(access, rows, bodies, problems)
        changes.check_batch(change)
        return changes.save(change)


def delete(
    collection: str, ids: Sequence[str], *, by: Principal, permanently: bool = False
) -> list[str]:
    """Remove records, and what `on_delete` says goes with them. Raises as `service.delete` does."""
    problems = Problems(range(len(ids)))
    _check_once("id", ids, problems)
    problems.check()
    with service.transaction(collection, by) as definition:
        access = accesses.for_operation(by, definition, "delete")
        rows = changes.lock_for_change(access, ids, [{}] * len(ids), problems)
        cascade.remove(definition, rows, by=by, problems=problems, permanently=permanently)
    return list(ids)


def upsert(
    collection: str, bodies: Sequence[Body], on: str, *, by: Principal
) -> tuple[list[RecordView], list[RecordView]]:
    """Update the records that have a body's value in the unique field `on`; create the others.

    Each under its own rule and field list. Returns the created records and the updated ones. The
    value of a record that the caller cannot see is a Conflict, as when one is created.
    """
    hidden: set[int] = set()
    try:
        with service.transaction(collection, by) as definition:
            return _upsert(definition, bodies, on, hidden, by)
    except Conflict as error:
        # The record was created after the look for it: the next try finds it.
        details = error.extra.get("details", ())
        if any(detail["field"] == on and detail["index"] not in hidden for detail in details):
            raise versioned_cache.Stale from error
        raise


def _upsert(
    definition: Definition, bodies: Sequence[Body], on: str, hidden: set[int], by: Principal
) -> tuple[list[RecordView], list[RecordView]]:
    field = key_field(definition, on, "on", by)
    problems = Problems(range(len(bodies)))
    keys = [key_of(field, body, index, problems) for index, body in enumerate(bodies)]
    _check_once(on, keys, problems)
    problems.check()
    creations, updates = prepare_upsert(definition, bodies, (on, keys), problems, hidden, by)
    changes.check_batch(*creations, *updates)
    created = [view for change in creations for view in changes.save(change)]
    return created, [view for change in updates for view in changes.save(change)]


def key_field(definition: Definition, name: str, parameter: str, by: Principal) -> Field:
    """The unique field that identifies records. Raises InvalidValues for others."""
    field = definition.fields.get(name)
    # A caller who may not see the values must not learn from conflicts which exist.
    is_visible = name in accesses.for_operation(by, definition, "create").comparable
    if field is None or (name,) not in definition.unique_keys or not is_visible:
        message = "Name a unique field of the collection that you see."
        raise InvalidValues([problem(parameter, "invalid_option", message)])
    return field


def prepare_upsert(
    definition: Definition,
    bodies: Sequence[Body],
    key: tuple[str, Sequence[object]],
    problems: Problems,
    hidden: set[int],
    by: Principal,
    *,
    has_numbers: bool = False,
) -> tuple[list[changes.Change], list[changes.Change]]:
    """Validates new records, and changes of those that have the key, a field with its values.

    Adds to `problems`, and to `hidden` the numbers of the records that the caller cannot see.
    """
    on, keys = key
    rows = writes.lock_by_value(definition, by.require_account_id(), on, keys)
    # The key is not sent as a change of the record that it finds.
    others = [{n: v for n, v in body.items() if n != on} for body in bodies]
    sent = dict(zip(keys, others, strict=True))
    visible = _is_visible_or_updatable(definition, rows, [sent[row[on]] for row in rows], by)
    present = {row[on]: row for row, shown in zip(rows, visible, strict=True) if shown}
    stored = {row[on] for row in rows}
    hidden |= {n for n, key in enumerate(keys) if key in stored and key not in present}

    indexes = problems.indexes or range(len(bodies))
    creations, updates = list[changes.Change](), list[changes.Change]()
    if new := [n for n, key in enumerate(keys) if key not in present]:
        new_problems = problems.subset([indexes[n] for n in new])
        new_bodies = values.with_new_lists(definition, [bodies[n] for n in new], new_problems)
        creations.append(
            changes.prepare_create(
                definition, new_bodies, new_problems, by, has_numbers=has_numbers
            )
        )
    if old := [n for n, key in enumerate(keys) if key in present]:
        access = accesses.for_operation(by, definition, "update")
        old_rows, old_bodies = [present[keys[n]] for n in old], [others[n] for n in old]
        old_problems = problems.subset([indexes[n] for n in old])
        whole = values.with_list_changes(access, old_rows, old_bodies)
        inputs = values.rule_inputs(access, whole)
        changes.check_rule(access, old_rows, inputs, old_problems)
        updates.append(changes.prepare_update(access, old_rows, old_bodies, old_problems))
    return creations, updates


def _is_visible_or_updatable(
    definition: Definition, rows: Sequence[store.Row], sent: Sequence[Body], by: Principal
) -> list[bool]:
    """Return for each record whether the caller may view it, or at least update it."""
    view_access = accesses.if_open(by, definition, "view")
    update_access = accesses.if_open(by, definition, "update")
    viewable = views.rule_matches(view_access, rows) if view_access else [False] * len(rows)
    if update_access is None or update_access.judges_change or all(viewable):
        return viewable
    inputs = values.rule_inputs(update_access, values.with_list_changes(update_access, rows, sent))
    updatable = views.rule_matches(update_access, rows, inputs)
    return [any(both) for both in zip(viewable, updatable, strict=True)]


def key_of(field: Field, body: Body, index: int, problems: Problems) -> object:
    """The value that identifies a record; adds a problem if there is none."""
    if body.get(field.name) is None:
        missing = problem(field.name, "required_missing", "It says which record is meant.")
        problems.add(index, [missing])
        return None
    try:
        return field.clean(body[field.name])
    except InvalidValue as error:
        problems.add(index, [problem(field.name, error.code, str(error))])
        return None


def _check_once(name: str, keys: Sequence[object], problems: Problems) -> None:
    known: set[object] = set()
    for index, key in enumerate(keys):
        if key is not None and key in known:
            problems.add(index, [problem(name, "not_unique", DUPLICATE)])
        known.add(key)
