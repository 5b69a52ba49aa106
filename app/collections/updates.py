"""Changes collections, or plans the change."""

from __future__ import annotations

from collections.abc import Collection as Collection_
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, IntegrityError

from app import db, events
from app.collections import (
    access,
    changes,
    definitions,
    expression_names,
    fragments,
    index_builds,
    indexes,
    models,
    renaming,
    revisions,
    schema,
    search_words,
    sequences,
    table,
    totals,
    trash,
    trials,
    view_service,
    views,
)
from app.collections import service as collections
from app.collections.changes import Change, Proposal
from app.collections.definitions import Definition
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import BadRequest, Conflict, InvalidValues
from app.types import JSONMapping, JSONObject

NAME_TAKEN = "This name is taken."
PLAN_REQUIRED = "Removed fields lose their values: plan this change and send its plan_hash."
TRASH_PLAN_REQUIRED = (
    "Without a trash, what is in it goes for good: plan this change and send its plan_hash."
)
PLAN_STALE = "The collection was changed after this plan, or the plan is of another change."


def update(collection_id: str, proposal: Proposal, body: JSONMapping) -> tuple[Collection, Change]:
    """Change name and schema, and the rules and options in `body`. Returns the change, too.

    Raises InvalidValues, NotFound, BadRequest (`plan_required`) where fields are removed without
    a plan, or Conflict, also if the plan is stale (`plan_stale`) or the version another one.
    """
    if proposal.removed and proposal.plan_hash is None:
        raise BadRequest(PLAN_REQUIRED, error="plan_required")

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        return [plan_change(collections.find(collection_id), proposal, [])]

    with index_builds.ahead(planned) as built:
        return _update(collection_id, proposal, body, built)


@table.schema_change
@versioned_cache.reloading()  # for referenced collections
def _update(
    collection_id: str, proposal: Proposal, body: JSONMapping, built: Builds
) -> tuple[Collection, Change]:
    row = collections.locked(collection_id)
    collections.check_version(row, proposal.expected_version)
    plan_hash = proposal.plan_hash
    if plan_hash is not None and plan_hash.partition("-")[0] != str(row.version):
        raise Conflict(PLAN_STALE, error="plan_stale")
    if proposal.renames(row.name):  # before looking for references, which others may be adding
        table.lock(definitions.from_row(row).table)
    problems: list[JSONObject] = []
    change = plan_change(row, proposal, problems)
    new_rules = collections.normalize_rules(body, change.new, problems)
    _check(problems, change, new_rules)
    check_plan(change, plan_hash)
    lost_choices = expression_names.lost_choices([change], {change.new.name.lower(): new_rules})
    changes.refuse([*row_problems(change, built), *lost_choices])
    store(row, change, new_rules, body.get("options", {}))
    follow([change])
    table.run(change.renaming_statements)
    execute(row, change, built)
    return row, change


@versioned_cache.reloading()  # for referenced collections
def plan(collection_id: str, proposal: Proposal) -> JSONObject:
    """Return an update's operations, SQL and hash, how to undo it, and problems of existing rows.

    Changes nothing.
    """
    row = collections.find(collection_id)
    problems: list[JSONObject] = []
    change = plan_change(row, proposal, problems)
    _check(problems, change, {})
    try:
        row_problems, lost = change.row_problems(), change.lost_values()
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        raise Conflict("The collection was changed concurrently. Plan again.") from error
    return {
        "operations": change.operations,
        "sql": change.statements,
        "problems": [*row_problems, *expression_names.lost_choices([change])],
        "plan_hash": change.plan_hash,
        "reverse": change.reverse,
        "data_lost": lost,
        "warnings": [*change.warnings, *rule_warnings(change.new)],
    }


def rule_warnings(definition: Definition) -> list[str]:
    """What is odd in the rules of a definition, and in the rights of its fields."""
    with definitions.override({definition.name.lower(): definition}):
        found = trials.all_warnings(definition)
    return [f"{one['field']}: {one['message']}" for one in found]


def plan_change(
    row: Collection,
    proposal: Proposal,
    problems: list[JSONObject],
    targets: Mapping[str, str] | None = None,
) -> Change:
    """Return the proposed change of a stored collection. Adds problems to `problems`.

    References may name `targets`: new names by name key, former ones included. Raises Conflict if
    another collection has the name.
    """
    old, removed = definitions.from_row(row), proposal.removed
    name, targets = old.name, dict(targets or collections.targets())
    if proposal.name is not None and proposal.renames(old.name):
        name = proposal.name
        if invalid := schema.name_problems(name):
            problems += invalid
            return Change(old, old)
        if name.lower() in map(str.lower, collections.names()):
            raise Conflict(NAME_TAKEN, field="name")
        targets |= dict.fromkeys((old.name.lower(), name.lower()), name)

    # The definition as it is, under its new names: what further changes are compared with.
    proposed = proposal.specs or ()
    new_problems: list[JSONObject] = []
    renames = schema.renames(old, proposed, removed, new_problems)
    present = renaming.renamed(old, renames, name)
    present = replace(present, schema=renaming.referring(present, targets))

    listed = {*removed, *(spec["name"] for spec in proposed)}
    omitted = [spec for spec in present.schema if spec["name"] not in listed]
    if proposal.partial or proposal.specs is None:
        specs: Sequence[JSONMapping] = schema.merged(present, proposed, removed)
    else:
        specs = [*proposed, *omitted] if proposal.keeps_omitted else proposed
    index_specs = present.indexes if proposal.indexes is None else proposal.indexes
    stored = [collections.stored(spec, targets) for spec in specs]
    if not new_problems:
        new_problems += schema.problems(specs, targets, index_specs, present.declared)
        new_problems += schema.change_problems(present, stored, removed)
        new_problems += schema.order_problems(specs, proposal.order)
    if new_problems:
        problems += new_problems
        return Change(old, old)

    # Removed fields leave field lists; rules, which are texts, have to be changed before.
    rules = {
        key: [one for one in value if one not in removed] if isinstance(value, list) else value
        for key, value in present.rules.items()
    }
    new_schema = _ordered(stored, present, proposal)
    new_indexes = tuple(indexes.stored(spec) for spec in index_specs)
    options = changes.merged(present.options, proposal.options)
    new = replace(present, schema=new_schema, indexes=new_indexes, rules=rules, options=options)
    problems += trash.name_problems(new_schema, options)
    problems += expression_names.field_problems(new.schema, new, present.declared)
    warned = [spec["name"] for spec in omitted] if proposed and proposal.keeps_omitted else []
    change = Change(old, new, renames, proposal.partial, warned)
    return change if problems else replace(change, views=views.after([change], []))


def _ordered(
    specs: Sequence[JSONMapping], present: Definition, proposal: Proposal
) -> tuple[JSONMapping, ...]:
    """Return the fields in the proposed order, then as they stand, the new ones last."""
    by_name = {spec["name"]: spec for spec in specs}
    first = [*proposal.order, *(spec["name"] for spec in present.schema)]
    names = dict.fromkeys([*(name for name in first if name in by_name), *by_name])
    return tuple(by_name[name] for name in names)


def check_plan(change: Change, plan_hash: str | None) -> None:
    """Refuse what was not planned. Raises BadRequest (`plan_required`), Conflict (`plan_stale`)."""
    if change.removed and plan_hash is None:
        raise BadRequest(PLAN_REQUIRED, error="plan_required")
    if change.discards_trash and plan_hash is None and trash.number(change.old.id):
        raise BadRequest(TRASH_PLAN_REQUIRED, error="plan_required")
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
    new_options = changes.merged(row.options, options)
    others = {**change.new.rules, **rules}, new_options, new_indexes
    if change.operations or others != (row.rules, row.options, row.indexes):
        row.schema = [dict(spec) for spec in change.new.schema]
        row.rules, row.options, row.indexes = others
        if change.discards_trash:
            trash.discard(change.old)
        row.fragments = fragments.used(row.rules)
        if change.ended_names or change.former_name:
            entry = models.era_entry(change.ended_names, change.former_name)
            row.former_names = [*row.former_names, entry]
        row.name, row.name_key, row.table_name = (
            *(change.new.name, change.new.name.lower()),
            change.new.table_name,
        )
        row.version += 1
        with errors.conflict_on_unique("collections", "name_key", "name", NAME_TAKEN):
            db.db.session.flush()


def follow(changes_: Sequence[Change], apart: Collection_[str] = ()) -> None:
    """Rewrite what names the changed collections and fields elsewhere. Raises Conflict.

    Views with the ids `apart` are left out.
    """
    view_service.follow(views.after(changes_, [], apart))
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
    revision = None
    if change.statements:
        events.publish(events.FieldsRemoved(change.renamed, change.lost))
        numbered = {name: one for name, one in change.new.sequences.items() if name in change.added}
        fills = {**change.fills, **{name: f"{one.text(1)} ..." for name, one in numbered.items()}}
        events.publish(events.DefaultsBackfilled(change.renamed, fills))
        try:
            table.run(built.adopted(change.further_statements))
        except IntegrityError as error:
            raise Conflict("Existing records do not fit the new schema.") from error
        if not table.is_sound(change.new.table):
            raise Conflict("A reference would have no target.")
        sequences.fill(change.new, numbered)
        totals.ensure(change.new.table, row.id)  # SQLite may have rebuilt the table
        revision = revisions.record(row.id, change.description, change.statements)
        if change.new.searched or row.indexing:
            search_words.start(row, change)
    table.restore_view(change.new.table)
    return revision


def _check(problems: Sequence[JSONMapping], change: Change, new_rules: JSONMapping) -> None:
    if not problems:
        with definitions.override({change.new.name.lower(): change.new}):
            problems = invalid_kept_rules(change, new_rules)
        problems = [*problems, *left_behind([change])]
    if problems:
        raise InvalidValues(problems)


def left_behind(changes_: Sequence[Change], apart: Collection_[str] = ()) -> list[JSONObject]:
    """Return the problems of other objects that name fields or collections as they were.

    Collections with the ids `apart` are left out.
    """
    problems = invalid_rules_elsewhere(changes_, apart)
    views.after(changes_, problems, apart)
    for change in changes_:
        names = frozenset([*change.removed, *change.renames])
        if names:
            events.publish(events.FieldNamesEnd(change.old, names, problems))
        if change.former_name:
            events.publish(events.CollectionNameEnds(change.former_name, problems))
    return problems


def invalid_kept_rules(change: Change, new_rules: JSONMapping) -> list[JSONObject]:
    """Return the problems of unchanged rules, which a new expression may make too long."""
    problems = []
    for key in collections.RULES:
        rule = change.new.rules.get(key)
        if rule and key not in new_rules:
            invalid = access.rule_problem(rule, change.new.rule_scope(key))
            problems += [invalid | {"field": key}] if invalid else []
    return problems


def invalid_rules_elsewhere(
    changes_: Sequence[Change], apart: Collection_[str] = ()
) -> list[JSONObject]:
    """Return the problems of other collections' rules that are valid before these changes."""
    if not any(
        change.removed
        or change.renames
        or change.former_name
        or any(operation["property"] == "expression" for operation in change.operations)
        for change in changes_
    ):
        return []
    changed = {*apart, *(change.new.id for change in changes_)}
    followed = {one.id: one for change in changes_ for _, one in change.elsewhere}
    followed |= {one.id: one for _, one in views.after(changes_, [])}
    every = definitions.get_all(with_views=True)
    others = [followed.get(one.id, one) for one in every if one.id not in changed]
    with definitions.override({change.new.name.lower(): change.new for change in changes_}):
        after = dict(_invalid_rules(others))
    before = dict(_invalid_rules(others)) if after else {}
    return [invalid | {"field": place} for place, invalid in after.items() if place not in before]


def _invalid_rules(others: Iterable[Definition]) -> Iterator[tuple[str, JSONObject]]:
    """Yield the place and problem of each invalid rule that reaches other collections."""
    for one in others:
        for key in collections.RULES:
            rule = one.rules.get(key) or ""
            reaches = "." in rule or "@" in rule
            invalid = access.rule_problem(rule, one.rule_scope(key)) if reaches else None
            if invalid:
                yield f"{one.name}.{key}", invalid
