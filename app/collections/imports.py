"""Plans the import of definitions, and carries it out in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from app import db
from app.collections import (
    changes,
    definitions,
    expression_names,
    fragments,
    revisions,
    schema,
    table,
    totals,
    trash,
    updates,
    view_service,
)
from app.collections import service as collections
from app.collections.changes import Change, Proposal
from app.collections.definitions import Definition, ViewDefinition
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.errors import problem
from app.types import JSONMapping, JSONObject

Item = JSONMapping
NAME_TWICE = "This name occurs twice in the import."


@dataclass
class Import:
    made: list[Collection] = field(default_factory=list)
    updated: list[tuple[Collection, Change]] = field(default_factory=list)
    views_made: list[Collection] = field(default_factory=list)
    views_updated: list[tuple[Collection, ViewDefinition]] = field(default_factory=list)
    """Views as they are stored, and as they will be."""
    skipped: list[str] = field(default_factory=list)
    given: dict[str, JSONMapping] = field(default_factory=dict)
    """The sent rules, options and plan hash by name key."""
    rules: dict[str, JSONObject] = field(default_factory=dict)
    """The sent rules in flat form, by name key."""
    problems: list[JSONObject] = field(default_factory=list)

    def definitions(self) -> dict[str, Definition]:
        """The resulting definitions by name key."""
        created = [definitions.from_row(row) for row in (*self.made, *self.views_made)]
        views = (new for _, new in self.views_updated)
        return {
            definition_.name.lower(): definition_
            for definition_ in [*created, *(c.new for _, c in self.updated), *views]
        }


def present(items: Sequence[Item], *, lock: bool = False) -> dict[str, Collection]:
    """The collections that items name, by name key; locked ones stay so in the transaction."""
    keys = [
        item[name].lower() for item in items for name in ("name", "rename_from") if name in item
    ]
    query = sa.select(Collection).where(Collection.name_key.in_(keys)).order_by(Collection.name_key)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return {row.name_key: row for row in db.db.session.scalars(query)}


def lock_renamed(items: Sequence[Item], existing: Mapping[str, Collection]) -> None:
    """Lock the tables of collections that will be renamed, before looking for references."""
    for key in _renamed(items, existing):
        table.lock(definitions.from_row(existing[key]).table)


def plan(
    items: Sequence[Item], existing: Mapping[str, Collection], strategy: str = "update"
) -> Import:
    """Plan an import, with all problems of the definitions. Raises Conflict."""
    of_views = [one for one in items if is_view(one, existing)]
    import_ = _plan([one for one in items if one not in of_views], existing, strategy)
    apart = {row.id for item in of_views if (row := existing.get(_present_key(item, existing)))}
    import_.rules = _rules(import_, apart)
    with definitions.override(import_.definitions()):
        _plan_views(import_, of_views, existing, strategy)
    return import_


def is_view(item: Item, existing: Mapping[str, Collection]) -> bool:
    """Whether an item says that it is a view, or names one."""
    row = existing.get(_present_key(item, existing))
    return item.get("type") == "view" or (row is not None and row.view is not None)


def _plan_views(
    import_: Import, items: Sequence[Item], existing: Mapping[str, Collection], strategy: str
) -> None:
    for item in items:
        name, problems = item["name"], list[JSONObject]()
        row = existing.get(_present_key(item, existing))
        body = {**item, **item["rules"]}
        if name.lower() in import_.given or name.lower() in import_.definitions():
            problems.append(problem("name", "name_duplicate", NAME_TWICE))
        elif row is None:
            problems += schema.name_problems(name)
            made = view_service.new(name, body, problems)
            import_.views_made.append(made)
            import_.rules[made.name_key] = made.rules
        elif strategy == "skip":
            import_.skipped.append(name)
        elif row.view is None or item.get("type", "view") != "view":
            problems.append(problem("type", "type_change_not_allowed", view_service.KIND_STAYS))
        else:
            new = view_service.changed(row, body, problems, partial=True)
            import_.views_updated.append((row, new))
            import_.rules[new.name.lower()] = dict(new.rules)
        import_.problems += [_with_name(name, problem_) for problem_ in problems]


def row_problems(import_: Import, built: Builds | None = None) -> list[JSONObject]:
    """The problems of present rows, and of lost choices; with `built`, the rows stay locked."""
    named = expression_names.lost_choices([change for _, change in import_.updated], import_.rules)
    return named + [
        _with_name(row.name, problem_)
        for row, change in import_.updated
        for problem_ in (
            change.row_problems() if built is None else updates.row_problems(change, built)
        )
    ]


def run(import_: Import, built: Builds) -> list[str]:
    """Carry out a plan without problems. Returns the ids of the new revisions."""
    for row in import_.made:
        row.rules = {**row.rules, **import_.rules[row.name_key]}
        row.fragments = fragments.used(row.rules)
        row.options = changes.merged({}, import_.given[row.name_key].get("options", {}))
    db.db.session.add_all(import_.made)
    for row, change in import_.updated:
        key = change.new.name.lower()
        options = import_.given[key].get("options", {})
        updates.store(row, change, import_.rules[key], options)
    db.db.session.flush()
    apart = {row.id for row, _ in import_.views_updated}
    updates.follow([change for _, change in import_.updated], apart)
    for _, change in import_.updated:
        table.run(change.renaming_statements)  # new tables may refer to those
    created = _make_tables(import_.made)
    altered = [updates.execute(row, change, built) for row, change in import_.updated]
    db.db.session.add_all(import_.views_made)
    for row, new in import_.views_updated:
        view_service.store(row, new)
    db.db.session.flush()
    return [*created, *(revision for revision in altered if revision)]


def _plan(items: Sequence[Item], existing: Mapping[str, Collection], strategy: str) -> Import:
    # Existing collections keep the case of their name.
    targets = {item["rename_from"].lower(): item["name"] for item in items if "rename_from" in item}
    targets |= {item["name"].lower(): item["name"] for item in items} | collections.targets()
    for former, name in _renamed(items, existing).items():
        if strategy == "update":
            targets[former] = name
        else:  # it keeps its former name
            del targets[name.lower()]
    import_, seen_keys = Import(), set[str]()
    for item in items:
        name, key, problems = item["name"], item["name"].lower(), list[JSONObject]()
        present_key = _present_key(item, existing)
        row = existing.get(present_key)
        if not seen_keys.isdisjoint((key, present_key)):
            problems.append(problem("name", "name_duplicate", NAME_TWICE))
        elif row is not None and strategy == "skip":
            import_.skipped.append(name)
        else:
            import_.given[key] = {
                **item["rules"],
                "options": item.get("options", {}),
                "plan_hash": item.get("plan_hash"),
            }
            if row is not None:
                proposal = Proposal(
                    item["schema"],
                    indexes=item.get("indexes"),
                    removed=item.get("remove_fields", ()),
                    partial=item.get("partial", False),
                    name=name,
                    order=item.get("field_order", ()),
                    options=item.get("options", {}),
                )
                change = updates.plan_change(row, proposal, problems, targets)
                import_.given.setdefault(change.new.name.lower(), import_.given[key])
                import_.updated.append((row, change))
            else:
                index_specs = item.get("indexes", ())
                problems += [
                    *schema.name_problems(name),
                    *schema.problems(item["schema"], targets, index_specs),
                    *trash.name_problems(item["schema"], item.get("options", {})),
                ]
                kept_specs = () if problems else index_specs
                made = collections.new(name, item["schema"], targets, kept_specs)
                if not problems:
                    of = definitions.from_row(made)
                    problems += expression_names.field_problems(made.schema, of, {})
                import_.made.append(made)
        seen_keys |= {key, present_key}
        import_.problems += [_with_name(name, problem_) for problem_ in problems]
    return import_


def _renamed(items: Sequence[Item], existing: Mapping[str, Collection]) -> dict[str, str]:
    """The new names of collections that an import renames, by present name key."""
    names = {_present_key(item, existing): item["name"] for item in items}
    return {key: name for key, name in names.items() if key != name.lower()}


def _present_key(item: Item, existing: Mapping[str, Collection]) -> str:
    """The name key that an item's collection has, or will have if it does not exist."""
    key, former = item["name"].lower(), str(item.get("rename_from", "")).lower()
    return former if former in existing and key not in existing else key


def _rules(import_: Import, apart: Set[str]) -> dict[str, JSONObject]:
    # Checked with all schemas: rules may refer to other collections of the import.
    rules_by_key, future = {}, import_.definitions()
    schema_problems = list(import_.problems)
    changes_by_key = {change.new.name.lower(): change for _, change in import_.updated}
    with definitions.override(future):
        for key, definition_ in future.items():
            problems = list(schema_problems)
            rules_by_key[key] = collections.normalize_rules(
                import_.given[key], definition_, problems
            )
            del problems[: len(schema_problems)]
            if key in changes_by_key:
                problems += updates.invalid_kept_rules(changes_by_key[key], rules_by_key[key])
            import_.problems += [_with_name(definition_.name, problem_) for problem_ in problems]
    if not import_.problems:
        import_.problems += updates.left_behind(list(changes_by_key.values()), apart)
    return rules_by_key


class Creation(NamedTuple):
    """A part of creating tables: one table, or references to tables that come after it."""

    row: Collection
    description: str
    statements: list[str]
    makes_table: bool = True


def creations(rows: Sequence[Collection]) -> Iterator[Creation]:
    """The statements that create the tables of new collections, which may refer to each other."""
    tables = {row.id: definitions.from_row(row).table for row in rows}
    missing = {table_.name for table_ in tables.values()}
    deferred = list[Creation]()
    for row in rows:
        own_table = tables[row.id]
        missing.discard(own_table.name)
        later = frozenset(missing)
        yield Creation(row, f"create collection {row.name}", table.creation(own_table, later))
        if references := table.references(own_table, later):
            description = f"add references to collection {row.name}"
            deferred.append(Creation(row, description, references, makes_table=False))
    yield from deferred


def _make_tables(rows: Sequence[Collection]) -> list[str]:
    revision_ids: list[str] = []
    for row, description, statements, makes_table in creations(rows):
        if makes_table:
            own_table = definitions.from_row(row).table
            table.make(own_table, statements)
            totals.ensure(own_table, row.id)
        else:
            table.run(statements)
        revision_ids.append(revisions.record(row.id, description, statements))
    return revision_ids


def _with_name(name: str, problem_: JSONMapping) -> JSONObject:
    return {**problem_, "field": f"{name[:80]}.{problem_['field']}"}
