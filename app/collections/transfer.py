"""Exports definitions, and imports them all or nothing (contract 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app import db
from app.collections import (
    changes,
    definition,
    index_builds,
    revisions,
    schema,
    table,
    totals,
    updates,
)
from app.collections import service as collections
from app.collections.changes import Change, Proposal
from app.collections.definition import Definition
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db import versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.types import JSONMapping, JSONObject

VERSION = "1.0"
STRATEGIES = ("error", "skip", "update")
OUTCOMES = IMPORTED, SKIPPED, UPDATED = ("imported", "skipped", "updated")
Item = JSONMapping


def exported(references: Sequence[str] | None) -> list[JSONObject]:
    """The definitions of some collections (ids or names), or of all, by name."""
    rows = list(db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key)))
    if references is not None:
        requested = {reference.lower() for reference in references}
        unknown = requested - {key for row in rows for key in (row.id, row.name_key)}
        if unknown:
            message = f"There is no such collection: {', '.join(sorted(unknown))[:200]}."
            raise InvalidValues([problem("collection_ids", "invalid_reference", message)])
        rows = [row for row in rows if requested & {row.id, row.name_key}]
    flat = (*collections.RULES, *collections.LISTS)
    return [
        {
            "name": row.name,
            "schema": row.schema,
            "rules": {key: row.rules[key] for key in flat},
            "options": row.options,
            "indexes": row.indexes,
        }
        for row in rows
    ]


@dataclass
class _Import:
    """A planned import."""

    made: list[Collection] = field(default_factory=list)
    updated: list[tuple[Collection, Change]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    given: dict[str, JSONMapping] = field(default_factory=dict)
    """The sent rules and options by name key."""
    problems: list[JSONObject] = field(default_factory=list)

    def definitions(self) -> dict[str, Definition]:
        """The resulting definitions by name key."""
        created = [definition.from_row(row) for row in self.made]
        return {
            definition_.name.lower(): definition_
            for definition_ in [*created, *(c.new for _, c in self.updated)]
        }


def imported(items: Sequence[Item], strategy: str) -> JSONObject:
    """Create or update collections, which may refer to each other in any order.

    All or nothing. Raises InvalidValues, or Conflict for names that exist or rows that clash.
    """

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        if strategy != "update":
            return []
        existing = {row.name_key: row for row in db.db.session.scalars(_query(items))}
        return [change for _, change in _plan(items, existing, strategy).updated]

    with index_builds.ahead(planned) as built:
        return _imported(items, strategy, built)


@collections.schema_change
@versioned_cache.reloading()  # for referenced collections
def _imported(items: Sequence[Item], strategy: str, built: Builds) -> JSONObject:
    existing = _existing(items)
    if strategy == "error" and existing:
        problems_ = [
            problem(row.name, "not_unique", "This name is taken.") for row in existing.values()
        ]
        raise Conflict(
            "Collections with these names exist already.", field="name", details=problems_
        )
    for key in _renamed(items, existing) if strategy == "update" else ():
        table.lock(definition.from_row(existing[key]).table)  # before looking for references
    import_ = _plan(items, existing, strategy)
    rules = _rules(import_)
    if import_.problems:
        raise InvalidValues(import_.problems)
    for row, change in import_.updated:
        import_.problems += [
            _with_name(row.name, problem_) for problem_ in updates.row_problems(change, built)
        ]
    changes.refuse(import_.problems)
    for row in import_.made:
        row.rules = {**row.rules, **rules[row.name_key]}
        row.options = dict(import_.given[row.name_key].get("options", {}))
    db.db.session.add_all(import_.made)
    for row, change in import_.updated:
        key = change.new.name.lower()
        updates.store(row, change, rules[key], import_.given[key].get("options", {}))
    db.db.session.flush()
    updates.follow([change for _, change in import_.updated])
    for _, change in import_.updated:
        table.run(change.renaming_statements)  # new tables may refer to those
    created = _make_tables(import_.made)
    altered = [updates.execute(row, change, built) for row, change in import_.updated]
    return _report(items, import_, [*created, *(problem_ for problem_ in altered if problem_)])


def _query(items: Sequence[Item]) -> sa.Select[Any]:
    keys = [
        item[name].lower() for item in items for name in ("name", "rename_from") if name in item
    ]
    return sa.select(Collection).where(Collection.name_key.in_(keys)).order_by(Collection.name_key)


def _existing(items: Sequence[Item]) -> dict[str, Collection]:
    query = _query(items).with_for_update().execution_options(populate_existing=True)
    rows = db.db.session.scalars(query)
    return {row.name_key: row for row in rows}


def _plan(items: Sequence[Item], existing: Mapping[str, Collection], strategy: str) -> _Import:
    # Existing collections keep the case of their name.
    targets = {item["rename_from"].lower(): item["name"] for item in items if "rename_from" in item}
    targets |= {item["name"].lower(): item["name"] for item in items} | collections.targets()
    for former, name in _renamed(items, existing).items():
        if strategy == "update":
            targets[former] = name
        else:  # it keeps its former name
            del targets[name.lower()]
    import_, seen_keys = _Import(), set[str]()
    for item in items:
        name, key, problems = item["name"], item["name"].lower(), list[JSONObject]()
        present_key = _present_key(item, existing)
        row = existing.get(present_key)
        if not seen_keys.isdisjoint((key, present_key)):
            problems.append(
                problem("name", "name_duplicate", "This name occurs twice in the import.")
            )
        elif row is not None and strategy == "skip":
            import_.skipped.append(name)
        else:
            import_.given[key] = {**item["rules"], "options": item.get("options", {})}
            if row is not None:
                removed = item.get("remove_fields", ())
                order = item.get("field_order", ())
                proposal = Proposal(
                    item["schema"], item.get("indexes"), removed, name=name, order=order
                )
                change = updates.plan_change(row, proposal, problems, targets)
                if not problems:
                    updates.check_plan(change, item.get("plan_hash"))
                import_.given.setdefault(change.new.name.lower(), import_.given[key])
                import_.updated.append((row, change))
            else:
                index_specs = item.get("indexes", ())
                problems += [
                    *schema.name_problems(name),
                    *schema.problems(item["schema"], targets, index_specs),
                ]
                kept_specs = () if problems else index_specs
                import_.made.append(collections.new(name, item["schema"], targets, kept_specs))
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


def _rules(import_: _Import) -> dict[str, JSONObject]:
    # Checked with all schemas: rules may refer to other collections of the import.
    rules_by_key, future = {}, import_.definitions()
    schema_problems = list(import_.problems)
    changes_by_key = {change.new.name.lower(): change for _, change in import_.updated}
    with definition.override(future):
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
        import_.problems += updates.left_behind(list(changes_by_key.values()))
    return rules_by_key


def _make_tables(rows: Sequence[Collection]) -> list[str]:
    revision_ids: list[str] = []
    tables = {row.id: definition.from_row(row).table for row in rows}
    missing = {table_.name for table_ in tables.values()}
    deferred: list[tuple[Collection, list[str]]] = []
    for row in rows:
        own_table = tables[row.id]
        missing.discard(own_table.name)
        deferred.append((row, table.references(own_table, frozenset(missing))))
        statements = table.creation(own_table, frozenset(missing))
        table.make(own_table, statements)
        totals.ensure(own_table, row.id)
        revision_ids.append(revisions.record(row.id, f"create collection {row.name}", statements))
    for row, statements in deferred:
        if statements:
            table.run(statements)
            description = f"add references to collection {row.name}"
            revision_ids.append(revisions.record(row.id, description, statements))
    return revision_ids


def _with_name(name: str, problem_: JSONMapping) -> JSONObject:
    return {**problem_, "field": f"{name[:80]}.{problem_['field']}"}


def _report(items: Sequence[Item], import_: _Import, migrations: list[str]) -> JSONObject:
    created = {row.name for row in import_.made}
    items_report = []
    for item in items:
        name = item["name"]
        if name in created:
            items_report.append({"name": name, "status": IMPORTED, "message": "Created."})
        elif name in import_.skipped:
            items_report.append({"name": name, "status": SKIPPED, "message": "Exists already."})
        else:
            items_report.append({"name": name, "status": UPDATED, "message": "Updated."})
    return {
        "success": True,
        "imported_count": len(created),
        "skipped_count": len(import_.skipped),
        "updated_count": len(import_.updated),
        "failed_count": 0,
        "collections": items_report,
        "migrations_created": migrations,
    }
