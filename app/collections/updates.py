"""Changes collections, or plans the change (contract section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.exc import DBAPIError, IntegrityError

from app import db, events
from app.collections import (
    access,
    changes,
    definition,
    index_builds,
    indexes,
    revisions,
    schema,
    table,
    totals,
)
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues
from app.types import JSONMapping, JSONObject


def update(
    collection_id: str,
    specs: Sequence[schema.Spec] | None,
    body: JSONMapping,
    *,
    name: str | None = None,
    partial: bool = False,
    expected_version: str | None = None,
) -> Collection:
    """Add fields, and change properties, rules, options and indexes; the latter as a whole.

    `specs` is the whole schema, or with `partial` only its changes. Raises InvalidValues, NotFound,
    or Conflict, also if the version is not `expected_version`.
    """

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        row = collections.find(collection_id)
        return [plan_change(row, specs, partial, [], index_specs=body.get("indexes"))]

    with index_builds.ahead(planned) as built:
        return _update(collection_id, specs, body, name, partial, expected_version, built)


@collections.schema_change
@versioned_cache.reloading()  # for referenced collections
def _update(
    collection_id: str,
    specs: Sequence[schema.Spec] | None,
    body: JSONMapping,
    name: str | None,
    partial: bool,
    expected_version: str | None,
    built: Builds,
) -> Collection:
    row = collections.locked(collection_id)
    collections.check_version(row, expected_version)
    problems = collections.rename_problems(row, "name", name)
    change = plan_change(row, specs, partial, problems, index_specs=body.get("indexes"))
    new_rules = collections.normalize_rules(body, change.new, problems)
    _check(problems, change, new_rules)
    changes.refuse(row_problems(change, built))
    store(row, change, new_rules, body.get("options", {}))
    execute(row, change, built)
    return row


@versioned_cache.reloading()  # for referenced collections
def plan(
    collection_id: str,
    specs: Sequence[schema.Spec] | None,
    index_specs: Sequence[indexes.Spec] | None = None,
) -> JSONObject:
    """The operations and SQL of an update, and problems of existing rows; changes nothing."""
    row = collections.find(collection_id)
    problems_: list[JSONObject] = []
    change = plan_change(row, specs, False, problems_, index_specs=index_specs)
    _check(problems_, change, {})
    try:
        problems = change.row_problems()
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
        raise Conflict("The collection was changed concurrently. Plan again.") from error
    return {"operations": change.operations, "sql": change.statements, "problems": problems}


def plan_change(
    row: Collection,
    specs: Sequence[schema.Spec] | None,
    partial: bool,
    problems: list[JSONObject],
    targets: Mapping[str, str] | None = None,
    index_specs: Sequence[indexes.Spec] | None = None,
) -> Change:
    """The change of a stored collection to a schema and indexes; None keeps the present ones.

    Adds problems to `problems`.
    """
    old = definition.from_row(row)
    targets = targets or collections.targets()
    index_specs = old.indexes if index_specs is None else index_specs
    specs_ = schema.merged(old, specs or ()) if partial or specs is None else specs
    stored = [collections.stored(spec, targets) for spec in specs_]
    new_problems = [
        *schema.problems(specs_, targets, index_specs),
        *schema.change_problems(old, stored),
    ]
    if new_problems:
        problems += new_problems
        return Change(old, old)
    new = {spec["name"]: spec for spec in stored}
    # Existing fields keep their order.
    order = dict.fromkeys([*(spec["name"] for spec in old.schema), *new])
    new_schema = tuple(new[name] for name in order)
    new_indexes = tuple(indexes.stored(spec) for spec in index_specs)
    return Change(old, replace(old, schema=new_schema, indexes=new_indexes))


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
    others = {**row.rules, **rules}, {**row.options, **options}, new_indexes
    if change.operations or others != (row.rules, row.options, row.indexes):
        row.schema = [dict(spec) for spec in change.new.schema]
        row.rules, row.options, row.indexes = others
        row.version += 1
        db.db.session.flush()


def execute(row: Collection, change: Change, built: Builds) -> str | None:
    """Run the statements of a stored change. Returns its revision, if any.

    Indexes that are `built` take their names instead of being created.
    """
    revision = _run(row, change, built) if change.statements else None
    table.restore_view(change.new.table)
    return revision


def _run(row: Collection, change: Change, built: Builds) -> str:
    events.publish(events.DefaultsBackfilled(change.old, change.fills))
    try:
        table.run(built.adopted(change.statements))
    except IntegrityError as error:
        raise Conflict("Existing records do not fit the new schema.") from error
    if not table.is_sound(change.new.table):
        raise Conflict("A reference would have no target.")
    totals.ensure(change.new.table, row.id)  # SQLite may have rebuilt the table
    return revisions.record(row.id, change.description, change.statements)


def _check(problems: Sequence[JSONMapping], change: Change, new_rules: JSONMapping) -> None:
    all_problems = [*problems, *invalid_kept_rules(change, new_rules)] or invalid_rules_elsewhere(
        [change]
    )
    if all_problems:
        raise InvalidValues(all_problems)


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
    future = {definition_.new.name.lower(): definition_.new for definition_ in changes_}
    other_definitions = [
        definition_
        for definition_ in definition.get_all()
        if definition_.name.lower() not in future
    ]
    with definition.override(future):
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
    return any(operation["property"] == "expression" for operation in change.operations)


def _invalid_rules(definition_: definition.Definition) -> Iterator[tuple[str, JSONObject]]:
    for key in collections.RULES:
        rule = definition_.rules.get(key) or ""
        problem_ = access.rule_problem(rule, definition_.scope) if "." in rule else None
        if problem_:
            yield f"{definition_.name}.{key}", problem_
