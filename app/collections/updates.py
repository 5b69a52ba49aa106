"""Changes collections, or plans the change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, IntegrityError

from app import db, events
from app.collections import (
    access,
    changes,
    definitions,
    eras,
    expression_names,
    index_builds,
    indexes,
    renaming,
    revisions,
    schema,
    table,
    totals,
)
from app.collections import service as collections
from app.collections.changes import Change, Proposal
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import BadRequest, Conflict, InvalidValues
from app.types import JSONMapping, JSONObject

NAME_TAKEN = "This name is taken."
PLAN_REQUIRED = "Removed fields lose their values: plan this change and send its plan_hash."
PLAN_STALE = "The collection was changed after this plan, or the plan is of another change."


def update(
    collection_id: str,
    proposal: Proposal,
    body: JSONMapping,
    *,
    plan_hash: str | None = None,
    expected_version: str | None = None,
    warnings: list[str] | None = None,
) -> Collection:
    """Change name and schema, and the rules and options in `body`; adds to `warnings`.

    Raises InvalidValues, NotFound, BadRequest (`plan_required`) where fields are removed without
    `plan_hash`, or Conflict, also if the plan is stale (`plan_stale`) or the version is not
    `expected_version`.
    """
    if proposal.removed and plan_hash is None:
        raise BadRequest(PLAN_REQUIRED, error="plan_required")

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        return [plan_change(collections.find(collection_id), proposal, [])]

    with index_builds.ahead(planned) as built:
        row, change = _update(collection_id, proposal, body, plan_hash, expected_version, built)
    if warnings is not None:
        warnings += change.warnings
    return row


@collections.schema_change
@versioned_cache.reloading()  # for referenced collections
def _update(
    collection_id: str,
    proposal: Proposal,
    body: JSONMapping,
    plan_hash: str | None,
    expected_version: str | None,
    built: Builds,
) -> tuple[Collection, Change]:
    row = collections.locked(collection_id)
    collections.check_version(row, expected_version)
    if plan_hash is not None and plan_hash.partition("-")[0] != str(row.version):
        raise Conflict(PLAN_STALE, error="plan_stale")
    if proposal.renames(row.name):  # before looking for references, which others may be adding
        table.lock(definitions.from_row(row).table)
    problems: list[JSONObject] = []
    change = plan_change(row, proposal, problems)
    new_rules = collections.normalize_rules(body, change.new, problems)
    _check(problems, change, new_rules)
    check_plan(change, plan_hash)
    named = expression_names.lost_choices([change], {change.new.name.lower(): new_rules})
    changes.refuse([*row_problems(change, built), *named])
    store(row, change, new_rules, body.get("options", {}))
    follow([change])
    table.run(change.renaming_statements)
    execute(row, change, built)
    return row, change


@versioned_cache.reloading()  # for referenced collections
def plan(collection_id: str, proposal: Proposal) -> JSONObject:
    """The operations, SQL and hash of an update, how to undo it, and problems of existing rows.

    Changes nothing.
    """
    row = collections.find(collection_id)
    problems_: list[JSONObject] = []
    change = plan_change(row, proposal, problems_)
    _check(problems_, change, {})
    try:
        problems, lost = change.row_problems(), change.lost_values()
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        raise Conflict("The collection was changed concurrently. Plan again.") from error
    return {
        "operations": change.operations,
        "sql": change.statements,
        "problems": [*problems, *expression_names.lost_choices([change])],
        "plan_hash": change.plan_hash,
        "reverse": change.reverse,
        "data_lost": lost,
        "warnings": change.warnings,
    }


def plan_change(
    row: Collection,
    proposal: Proposal,
    problems: list[JSONObject],
    targets: Mapping[str, str] | None = None,
) -> Change:
    """The change of a stored collection that is proposed. Adds problems to `problems`.

    References may name `targets`: new names by name key, former ones included. Raises Conflict if
    another collection has the name.
    """
    old, specs, removed = definitions.from_row(row), proposal.specs, proposal.removed
    name = old.name if proposal.name is None else proposal.name
    targets = dict(targets or collections.targets())
    new_problems: list[JSONObject] = []
    if not proposal.renames(old.name):
        name = old.name
    else:
        if invalid := schema.name_problems(name):
            problems += invalid
            return Change(old, old)
        if name.lower() in collections.targets():
            raise Conflict(NAME_TAKEN, field="name")
        targets |= dict.fromkeys((old.name.lower(), name.lower()), name)
    renames = schema.renames(old, specs or (), removed, new_problems)
    present = renaming.renamed(old, renames, name)
    present = replace(present, schema=renaming.referring(present, targets))
    index_specs = present.indexes if proposal.indexes is None else proposal.indexes
    listed = {*removed, *(spec["name"] for spec in specs or ())}
    left_out = [spec for spec in present.schema if spec["name"] not in listed]
    if proposal.partial or specs is None:
        specs_: Sequence[JSONMapping] = schema.merged(present, specs or (), removed)
    else:
        specs_ = [*specs, *left_out] if proposal.keeps_omitted else specs
    stored = [collections.stored(spec, targets) for spec in specs_]
    if not new_problems:
        new_problems += schema.problems(specs_, targets, index_specs, present.declared)
        new_problems += schema.change_problems(present, stored, removed)
        new_problems += schema.order_problems(specs_, proposal.order)
    if new_problems:
        problems += new_problems
        return Change(old, old)
    new = {spec["name"]: spec for spec in stored}
    # Existing fields keep their order, unless another one is proposed.
    kept = [spec["name"] for spec in present.schema if spec["name"] in new]
    names = [*(name for name in proposal.order if name in new), *kept, *new]
    new_schema = tuple(new[name] for name in dict.fromkeys(names))
    new_indexes = tuple(indexes.stored(spec) for spec in index_specs)
    new_rules = {key: _without(value, removed) for key, value in present.rules.items()}
    changed = replace(present, schema=new_schema, indexes=new_indexes, rules=new_rules)
    stored_expressions = {name: field.expression for name, field in present.declared.items()}
    problems += expression_names.computed_problems(new_schema, changed, stored_expressions)
    omitted = [spec["name"] for spec in left_out] if specs and proposal.keeps_omitted else []
    return Change(old, changed, renames, proposal.partial, omitted)


def _without(value: object, removed: Sequence[str]) -> object:
    # Field lists follow by themselves; rules are texts.
    return [name for name in value if name not in removed] if isinstance(value, list) else value


def check_plan(change: Change, plan_hash: str | None) -> None:
    """Refuse what was not planned. Raises BadRequest (`plan_required`), Conflict (`plan_stale`)."""
    if change.removed and plan_hash is None:
        raise BadRequest(PLAN_REQUIRED, error="plan_required")
    if plan_hash not in (None, change.plan_hash):
        raise Conflict(PLAN_STALE, error="plan_stale")


def row_problems(change: Change, built: Builds) -> list[JSONObject]:
    """The problems of existing rows, which stay locked until the transaction ends.

    Indexes that are `built` need no lock: they hold what they promise.
    """
    if built.remaining(change.statements) or change.removes_choices:
        table.lock(change.old.table)
    return change.row_problems(built.names.keys())


def store(row: Collection, change: Change, rules: JSONMapping, options: JSONMapping) -> None:
    """Store the new definition."""
    new_indexes = [dict(spec) for spec in change.new.indexes]
    others = {**change.new.rules, **rules}, {**row.options, **options}, new_indexes
    if change.operations or others != (row.rules, row.options, row.indexes):
        row.schema = [dict(spec) for spec in change.new.schema]
        row.rules, row.options, row.indexes = others
        if change.ended_names or change.former_name:
            entry = eras.entry(change.ended_names, change.former_name)
            row.former_names = [*row.former_names, entry]
        row.name, row.name_key, row.table_name = (
            *(change.new.name, change.new.name.lower()),
            change.new.table_name,
        )
        row.version += 1
        with errors.conflict_on_unique("collections", "name_key", "name", NAME_TAKEN):
            db.db.session.flush()


def follow(changes_: Sequence[Change]) -> None:
    """Store what follows new names elsewhere. Raises Conflict."""
    changed = {change.new.id for change in changes_}
    for change in changes_:
        for _, new in change.elsewhere:
            if new.id not in changed:
                row = collections.locked(new.id)
                collections.check_version(row, str(new.version))
                row.rules, row.schema = dict(new.rules), [dict(spec) for spec in new.schema]
                row.version += 1
                db.db.session.flush()
                table.restore_view(new.table)  # dropped with the former schema
        if change.renames or change.removed:
            removed = frozenset(change.removed)
            events.publish(events.FieldsRenamed(change.old, change.renames, removed))
        if change.former_name:
            events.publish(events.CollectionRenamed(change.old.name, change.new.name))


def execute(row: Collection, change: Change, built: Builds) -> str | None:
    """Run the further statements of a stored change. Returns its revision, if any.

    Its names have been changed. Indexes that are `built` take theirs instead of being created.
    """
    revision = _run(row, change, built) if change.statements else None
    table.restore_view(change.new.table)
    return revision


def _run(row: Collection, change: Change, built: Builds) -> str:
    events.publish(events.FieldsRemoved(change.renamed, change.lost))
    events.publish(events.DefaultsBackfilled(change.renamed, change.fills))
    try:
        table.run(built.adopted(change.further_statements))
    except IntegrityError as error:
        raise Conflict("Existing records do not fit the new schema.") from error
    if not table.is_sound(change.new.table):
        raise Conflict("A reference would have no target.")
    totals.ensure(change.new.table, row.id)  # SQLite may have rebuilt the table
    return revisions.record(row.id, change.description, change.statements)


def _check(problems: Sequence[JSONMapping], change: Change, new_rules: JSONMapping) -> None:
    if not problems:
        with definitions.override({change.new.name.lower(): change.new}):
            problems = invalid_kept_rules(change, new_rules)
        problems = [*problems, *left_behind([change])]
    if problems:
        raise InvalidValues(problems)


def left_behind(changes_: Sequence[Change]) -> list[JSONObject]:
    """What names a field beyond its collection, and would be wrong after these changes."""
    problems = invalid_rules_elsewhere(changes_)
    for change in changes_:
        names = frozenset([*change.removed, *change.renames])
        if names:
            events.publish(events.FieldNamesEnd(change.old, names, problems))
        if change.former_name:
            events.publish(events.CollectionNameEnds(change.former_name, problems))
    return problems


def invalid_kept_rules(change: Change, new_rules: JSONMapping) -> list[JSONObject]:
    """Unchanged rules that a computed field's new expression makes too long."""
    kept_rules = {
        key: change.new.rules.get(key) for key in collections.RULES if key not in new_rules
    }
    problems = {
        key: access.rule_problem(rule, change.new.scope) for key, rule in kept_rules.items() if rule
    }
    return [problem_ | {"field": key} for key, problem_ in problems.items() if problem_]


def invalid_rules_elsewhere(changes_: Sequence[Change]) -> list[JSONObject]:
    """Rules of other collections that these changes would make invalid."""
    if not any(_expressions_change(definition_) for definition_ in changes_):
        return []
    future = {change.new.name.lower(): change.new for change in changes_}
    changed = {change.new.id for change in changes_}
    followed = {one.id: one for change in changes_ for _, one in change.elsewhere}
    other_definitions = [
        followed.get(definition_.id, definition_)
        for definition_ in definitions.get_all()
        if definition_.id not in changed
    ]
    with definitions.override(future):
        after = dict(
            problem_
            for definition_ in other_definitions
            for problem_ in _invalid_rules(definition_)
        )
    before = (
        dict(
            problem_
            for definition_ in other_definitions
            for problem_ in _invalid_rules(definition_)
        )
        if after
        else {}
    )
    return [problem_ | {"field": place} for place, problem_ in after.items() if place not in before]


def _expressions_change(change: Change) -> bool:
    operations = change.operations
    is_changed = any(operation["property"] == "expression" for operation in operations)
    return is_changed or bool(change.removed or change.renames or change.former_name)


def _invalid_rules(definition_: definitions.Definition) -> Iterator[tuple[str, JSONObject]]:
    for key in collections.RULES:
        rule = definition_.rules.get(key) or ""
        problem_ = access.rule_problem(rule, definition_.scope) if "." in rule else None
        if problem_:
            yield f"{definition_.name}.{key}", problem_
