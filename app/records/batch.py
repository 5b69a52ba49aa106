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


def delete(collection: str, ids: Sequence[str], *, by: Principal) -> list[str]:
    """Remove records, and what `on_delete` says goes with them. Raises as `service.delete` does."""
    problems = Problems(range(len(ids)))
    _check_once("id", ids, problems)
    problems.check()
    with service.transaction(collection, by) as definition:
        access = accesses.for_operation(by, definition, "delete")
        rows = changes.lock_for_change(access, ids, [{}] * len(ids), problems)
        cascade.remove(definition, rows, by=by)
    return list(ids)


def upsert(
    collection: str, bodies: Sequence[Body], on: str, *, by: Principal
) -> tuple[list[RecordView], list[RecordView]]:
    """Update the records that have a body's value in the unique field `on`; create the others.

    Each kind under its own rule and field list. Returns what was created, and what was updated.
    A record out of the caller's sight is in the way of its value, as for whoever creates one.
    """
    hidden: set[int] = set()
    try:
        with service.transaction(collection, by) as definition:
            return _upsert(definition, bodies, on, hidden, by)
    except Conflict as error:
        # Somebody has made such a record since we looked: next time it is there.
        details = error.extra.get("details", ())
        if any(detail["field"] == on and detail["index"] not in hidden for detail in details):
            raise versioned_cache.Stale from error
        raise


def _upsert(
    definition: Definition, bodies: Sequence[Body], on: str, hidden: set[int], by: Principal
) -> tuple[list[RecordView], list[RecordView]]:
    field = _key_field(definition, on, by)
    problems = Problems(range(len(bodies)))
    keys = _keys(field, bodies, problems)
    problems.check()
    rows = writes.lock_by_value(definition, by.require_account_id(), on, keys)
    # What a record was found by is not sent to be changed.
    changed_fields = [{n: v for n, v in body.items() if n != on} for body in bodies]
    sent = dict(zip(keys, changed_fields, strict=True))
    visible = _is_visible_or_updatable(definition, rows, [sent[row[on]] for row in rows], by)
    present = {row[on]: row for row, is_visible in zip(rows, visible, strict=True) if is_visible}
    matched_values = {row[on] for row in rows}
    hidden |= {n for n, key in enumerate(keys) if key in matched_values and key not in present}
    new = [place for place, key in enumerate(keys) if key not in present]
    old = [place for place, key in enumerate(keys) if key in present]
    new_changes = _prepare_new(
        definition, [bodies[place] for place in new], problems.subset(new), by
    )
    rows_to_update = [present[keys[place]] for place in old]
    changed = _prepare_changed(
        definition,
        rows_to_update,
        [changed_fields[place] for place in old],
        problems.subset(old),
        by,
    )
    changes.check_batch(*new_changes, *changed)
    created = [view for change in new_changes for view in changes.save(change)]
    return created, [view for change in changed for view in changes.save(change)]


def _is_visible_or_updatable(
    definition: Definition, rows: Sequence[store.Row], sent: Sequence[Body], by: Principal
) -> list[bool]:
    """Which records the caller may view, or at least update."""
    view_access, update_access = (
        accesses.if_open(by, definition, other_operation) for other_operation in ("view", "update")
    )
    viewable = views.rule_matches(view_access, rows) if view_access else [False] * len(rows)
    if update_access is None or all(viewable):
        return viewable
    updatable = views.rule_matches(update_access, rows, values.rule_inputs(update_access, sent))
    return [
        other_operation or other for other_operation, other in zip(viewable, updatable, strict=True)
    ]


def _prepare_new(
    definition: Definition, bodies: Sequence[Body], problems: Problems, by: Principal
) -> list[changes.Change]:
    return [changes.prepare_create(definition, bodies, problems, by)] if bodies else []


def _prepare_changed(
    definition: Definition,
    rows: Sequence[store.Row],
    bodies: Sequence[Body],
    problems: Problems,
    by: Principal,
) -> list[changes.Change]:
    if not rows:
        return []
    access = accesses.for_operation(by, definition, "update")
    changes.check_rule(access, rows, values.rule_inputs(access, bodies), problems)
    return [changes.prepare_update(access, rows, bodies, problems)]


def _key_field(definition: Definition, on: str, by: Principal) -> Field:
    field = definition.fields.get(on)
    # Whoever may not see the values shall not find out by them which there are.
    is_visible = on in accesses.for_operation(by, definition, "create").comparable
    if field is None or (on,) not in definition.unique_keys or not is_visible:
        message = "Name a unique field of the collection that you see."
        raise InvalidValues([problem("on", "invalid_option", message)])
    return field


def _keys(field: Field, bodies: Sequence[Body], problems: Problems) -> list[object]:
    keys = [_key(field, body, index, problems) for index, body in enumerate(bodies)]
    _check_once(field.name, keys, problems)
    return keys


def _key(field: Field, body: Body, index: int, problems: Problems) -> object:
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
