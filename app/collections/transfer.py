"""Definitions moved between instances: exported, and imported all or nothing (contract 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from app import db
from app.collections import changes, definition, revisions, schema, table, updates
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.definition import Definition
from app.collections.models import Collection
from app.db import versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.types import JSONMapping, JSONObject

VERSION = "1.0"
STRATEGIES = ("error", "skip", "update")
Item = JSONMapping


def exported(references: Sequence[str] | None) -> list[JSONObject]:
    """The definitions of some collections (ids or names), or of all, by name."""
    rows = list(db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key)))
    if references is not None:
        wanted = {reference.lower() for reference in references}
        unknown = wanted - {key for row in rows for key in (row.id, row.name_key)}
        if unknown:
            message = f"There is no such collection: {', '.join(sorted(unknown))[:200]}."
            raise InvalidValues([problem("collection_ids", "invalid_reference", message)])
        rows = [row for row in rows if wanted & {row.id, row.name_key}]
    flat = (*collections.RULES, *collections.LISTS)
    return [
        {
            "name": row.name,
            "schema": row.schema,
            "rules": {key: row.rules[key] for key in flat},
            "options": row.options,
        }
        for row in rows
    ]


@dataclass
class _Import:
    """What an import comes to, before anything is done."""

    made: list[Collection] = field(default_factory=list)
    updated: list[tuple[Collection, Change]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    given: dict[str, JSONMapping] = field(default_factory=dict)
    """The rules and options that were sent, by the key of the collection's name."""
    problems: list[JSONObject] = field(default_factory=list)

    def definitions(self) -> dict[str, Definition]:
        """The collections as they shall be, by the keys of their names."""
        shall_be = [definition.from_row(row) for row in self.made]
        return {one.name.lower(): one for one in [*shall_be, *(c.new for _, c in self.updated)]}


@collections.schema_change
@versioned_cache.reloading()  # for the collections that rules lead to
def imported(items: Sequence[Item], strategy: str) -> JSONObject:
    """Make or update collections, which may refer to each other in any order.

    All or nothing. Raises InvalidValues, or Conflict for names that exist or rows that clash.
    """
    present = _present(items)
    if strategy == "error" and present:
        taken = [problem(row.name, "not_unique", "This name is taken.") for row in present.values()]
        raise Conflict("Collections of these names exist already.", field="name", details=taken)
    planned = _planned(items, present, strategy)
    rules = _rules(planned)
    if planned.problems:
        raise InvalidValues(planned.problems)
    for row, change in planned.updated:
        planned.problems += [_within(row.name, one) for one in updates.row_problems(change)]
    changes.refuse(planned.problems)
    for row in planned.made:
        row.rules = {**row.rules, **rules[row.name_key]}
        row.options = dict(planned.given[row.name_key].get("options", {}))
    db.db.session.add_all(planned.made)
    for row, change in planned.updated:
        given = planned.given[row.name_key].get("options", {})
        updates.write_down(row, change, rules[row.name_key], given)
    db.db.session.flush()
    made = _make_tables(planned.made)
    altered = [updates.carry_out(row, change) for row, change in planned.updated]
    return _report(items, planned, [*made, *(one for one in altered if one)])


def _present(items: Sequence[Item]) -> dict[str, Collection]:
    keys = [item["name"].lower() for item in items]
    chosen = sa.select(Collection).where(Collection.name_key.in_(keys))
    locked = chosen.order_by(Collection.name_key).with_for_update()
    rows = db.db.session.scalars(locked.execution_options(populate_existing=True))
    return {row.name_key: row for row in rows}


def _planned(items: Sequence[Item], present: Mapping[str, Collection], strategy: str) -> _Import:
    # What exists keeps the name that it has, whatever the case of the import's.
    known = {item["name"].lower(): item["name"] for item in items} | collections.targets()
    planned, seen = _Import(), set[str]()
    for item in items:
        name, key, found = item["name"], item["name"].lower(), list[JSONObject]()
        if key in seen:
            found.append(problem("name", "name_duplicate", "The import has this name twice."))
        elif key in present and strategy == "skip":
            planned.skipped.append(name)
        else:
            planned.given[key] = {**item["rules"], "options": item.get("options", {})}
            if key in present:
                change = updates.change_of(present[key], item["schema"], False, found, known)
                planned.updated.append((present[key], change))
            else:
                found += [*schema.name_problems(name), *schema.problems(item["schema"], known)]
                planned.made.append(collections.new(name, item["schema"], known))
        seen.add(key)
        planned.problems += [_within(name, one) for one in found]
    return planned


def _rules(planned: _Import) -> dict[str, JSONObject]:
    # Judged when all schemas are known: a rule may lead into another collection of the import.
    settled, shall_be = {}, planned.definitions()
    wrong_schemas = list(planned.problems)
    changes_of = {row.name_key: change for row, change in planned.updated}
    with definition.override(shall_be):
        for key, one in shall_be.items():
            found = list(wrong_schemas)
            settled[key] = collections.settle_rules(planned.given[key], one, found)
            del found[: len(wrong_schemas)]
            if key in changes_of:
                found += updates.broken_rules(changes_of[key], settled[key])
            planned.problems += [_within(one.name, wrong) for wrong in found]
    if not planned.problems:
        planned.problems += updates.broken_elsewhere(list(changes_of.values()))
    return settled


def _make_tables(rows: Sequence[Collection]) -> list[str]:
    made: list[str] = []
    tables = {row.id: definition.from_row(row).table for row in rows}
    waiting = {one.name for one in tables.values()}
    later: list[tuple[Collection, list[str]]] = []
    for row in rows:
        own = tables[row.id]
        waiting.discard(own.name)
        later.append((row, table.references(own, frozenset(waiting))))
        statements = table.creation(own, frozenset(waiting))
        table.make(own, statements)
        made.append(revisions.record(row.id, f"create collection {row.name}", statements))
    for row, statements in later:
        if statements:
            table.run(statements)
            description = f"add references to collection {row.name}"
            made.append(revisions.record(row.id, description, statements))
    return made


def _within(name: str, found: JSONMapping) -> JSONObject:
    return {**found, "field": f"{name[:80]}.{found['field']}"}


def _report(items: Sequence[Item], planned: _Import, migrations: list[str]) -> JSONObject:
    made = {row.name for row in planned.made}
    told = []
    for item in items:
        name = item["name"]
        if name in made:
            told.append({"name": name, "status": "imported", "message": "The collection is made."})
        elif name in planned.skipped:
            told.append({"name": name, "status": "skipped", "message": "It exists already."})
        else:
            told.append({"name": name, "status": "updated", "message": "It is as imported now."})
    return {
        "success": True,
        "imported_count": len(made),
        "skipped_count": len(planned.skipped),
        "updated_count": len(planned.updated),
        "failed_count": 0,
        "collections": told,
        "migrations_created": migrations,
    }
