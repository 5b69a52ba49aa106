"""Collections changed, or the change only planned (contract section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, IntegrityError

from app import db, events
from app.collections import access, changes, definition, revisions, schema, table
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues
from app.types import JSONMapping, JSONObject


@collections.schema_change
@versioned_cache.reloading()  # for the collections that rules lead to
def update(
    collection_id: str,
    specs: Sequence[schema.Spec] | None,
    rules: JSONMapping,
    *,
    name: str | None = None,
    partial: bool = False,
    seen: str | None = None,
) -> Collection:
    """Add fields, change properties, and rules. Raises InvalidValues, NotFound or Conflict.

    `specs` are the whole schema, or with `partial` only what changes of it; `seen` is the version
    that the change was made from, if that matters.
    """
    row = collections.locked(collection_id)
    collections.check_seen(row, seen)
    found = collections.renaming(row, "name", name)
    change = change_of(row, specs, partial, found)
    settled = collections.settle_rules(rules, change.new, found)
    _refuse_wrong(found, change, settled)
    changes.refuse(row_problems(change))
    write_down(row, change, settled, rules.get("options", {}))
    carry_out(row, change)
    return row


@versioned_cache.reloading()  # for the collections that rules lead to
def plan(collection_id: str, specs: Sequence[schema.Spec]) -> JSONObject:
    """What an update would do, and which rows would break it; nothing is changed."""
    row = collections.find(collection_id)
    found: list[JSONObject] = []
    change = change_of(row, specs, False, found)
    _refuse_wrong(found, change, {})
    try:
        problems = change.row_problems()
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        raise Conflict("The collection was changed meanwhile. Plan again.") from error
    return {"operations": change.operations, "sql": change.statements, "problems": problems}


def change_of(
    row: Collection,
    specs: Sequence[schema.Spec] | None,
    partial: bool,
    found: list[JSONObject],
    targets: Mapping[str, str] | None = None,
) -> Change:
    """The change from a stored collection to a schema; what is wrong with it goes to `found`."""
    old = definition.from_row(row)
    targets = targets or collections.targets()
    whole = schema.merged(old, specs or ()) if partial or specs is None else specs
    stored = [collections.stored(spec, targets) for spec in whole]
    wrong = [*schema.problems(whole, targets), *schema.change_problems(old, stored)]
    if wrong:
        found += wrong
        return Change(old, old)
    new = {spec["name"]: spec for spec in stored}
    # Present fields keep their places, whatever the order in which they were sent.
    order = dict.fromkeys([*(spec["name"] for spec in old.schema), *new])
    return Change(old, replace(old, schema=tuple(new[name] for name in order)))


def row_problems(change: Change) -> list[JSONObject]:
    """What keeps the present rows from following; until the transaction ends they stay so."""
    if change.statements:
        table.lock(change.old.table)
    return change.row_problems()


def write_down(row: Collection, change: Change, rules: JSONMapping, options: JSONMapping) -> None:
    """Store the definition that a change leads to."""
    new_rules, new_options = {**row.rules, **rules}, {**row.options, **options}
    if change.operations or (new_rules, new_options) != (row.rules, row.options):
        row.schema, row.rules = [dict(spec) for spec in change.new.schema], new_rules
        row.options = new_options
        row.version += 1
        db.db.session.flush()


def carry_out(row: Collection, change: Change) -> str | None:
    """Run the statements of a change that is written down. Returns its revision, if it has one."""
    if not change.statements:
        return None
    events.publish(events.DefaultsBackfilled(change.old, change.fills))
    try:
        table.run(change.statements)
    except IntegrityError as error:
        raise Conflict("The records there are do not fit the new schema.") from error
    if not table.is_sound(change.new.table):
        raise Conflict("A reference would point at nothing.")
    return revisions.record(row.id, change.description, change.statements)


def _refuse_wrong(found: Sequence[JSONMapping], change: Change, settled: JSONMapping) -> None:
    wrong = [*found, *broken_rules(change, settled)] or broken_elsewhere([change])
    if wrong:
        raise InvalidValues(wrong)


def broken_rules(change: Change, settled: JSONMapping) -> list[JSONObject]:
    """Rules that stay, and name a computed field whose new expression makes them too long."""
    kept = {key: change.new.rules.get(key) for key in collections.RULES if key not in settled}
    judged = {
        key: access.rule_problem(rule, change.new.scope) for key, rule in kept.items() if rule
    }
    return [wrong | {"field": key} for key, wrong in judged.items() if wrong]


def broken_elsewhere(changed: Sequence[Change]) -> list[JSONObject]:
    """Rules of other collections that fit as these are, and would not as they shall be."""
    if not any(_expressions_change(one) for one in changed):
        return []
    shall_be = {one.new.name.lower(): one.new for one in changed}
    others = [one for one in definition.get_all() if one.name.lower() not in shall_be]
    with definition.override(shall_be):
        after = dict(wrong for one in others for wrong in _misfits(one))
    before = dict(wrong for one in others for wrong in _misfits(one)) if after else {}
    return [wrong | {"field": place} for place, wrong in after.items() if place not in before]


def _expressions_change(change: Change) -> bool:
    return any(one["property"] == "expression" for one in change.operations)


def _misfits(one: definition.Definition) -> Iterator[tuple[str, JSONObject]]:
    for key in collections.RULES:
        rule = one.rules.get(key) or ""
        wrong = access.rule_problem(rule, one.scope) if "." in rule else None
        if wrong:
            yield f"{one.name}.{key}", wrong
