"""Exports definitions, and imports them all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from app import db
from app.collections import changes, fragments, imports, index_builds, table, updates
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.imports import Import, Item
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db import versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.types import JSONObject

VERSION = "1.0"
STRATEGIES = ("error", "skip", "update")
OTHER_FRAGMENTS = "Fragments with these names have another text here: {}. Rename one of each."
OTHER_TEXT = "This fragment has another text here."
OUTCOMES = IMPORTED, SKIPPED, UPDATED = ("imported", "skipped", "updated")


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
        if row.view is None
        else {
            "name": row.name,
            "type": "view",
            **row.view,
            "rules": {key: row.rules[key] for key in flat if key.startswith(("list", "view"))},
        }
        for row in rows
    ]


def used_fragments(items: Sequence[Item]) -> dict[str, str]:
    """The fragments that the rules of exported collections use."""
    found: dict[str, str] = {}
    for item in items:
        found |= fragments.used({**item["rules"], fragments.WHERE: item.get(fragments.WHERE)})
    return found


def imported(items: Sequence[Item], strategy: str, given: Mapping[str, str] = {}) -> JSONObject:
    """Create or update collections, which may refer to each other in any order.

    Of the fragments that are `given`, those that are missing are created. All or nothing. Raises
    InvalidValues, or Conflict for names that exist, other fragments, or rows that clash.
    """

    @versioned_cache.reloading()  # for referenced collections
    def planned() -> list[Change]:
        if strategy != "update":
            return []
        with fragments.override(_with_missing(given)):
            import_ = imports.plan(items, imports.present(items), strategy)
            _check(import_)
        return [change for _, change in import_.updated]

    with index_builds.ahead(planned) as built:
        return _imported(items, strategy, given, built)


def _with_missing(given: Mapping[str, str]) -> Mapping[str, str]:
    """The fragments here, and those given. Raises Conflict for other texts, or InvalidValues."""
    present = fragments.stored_texts()
    different = [name for name in given if present.get(name, given[name]) != given[name]]
    if different:
        problems = [problem(f"fragments.{name}", "in_use", OTHER_TEXT) for name in different]
        raise Conflict(OTHER_FRAGMENTS.format(", ".join(different)), details=problems)
    resulting = {**present, **given}
    if problems := [*fragments.problems_with(present, resulting, ())]:
        raise InvalidValues([one | {"field": f"fragments.{one['field']}"} for one in problems])
    return resulting


@table.schema_change
@versioned_cache.reloading()  # for referenced collections
def _imported(
    items: Sequence[Item], strategy: str, given: Mapping[str, str], built: Builds
) -> JSONObject:
    resulting = _with_missing(given)
    fragments.store(resulting)
    existing = imports.present(items, lock=True)
    if strategy == "error" and existing:
        problems_ = [
            problem(row.name, "not_unique", "This name is taken.") for row in existing.values()
        ]
        raise Conflict(
            "Collections with these names exist already.", field="name", details=problems_
        )
    if strategy == "update":
        imports.lock_renamed(items, existing)
    import_ = imports.plan(items, existing, strategy)
    _check(import_)
    changes.refuse(imports.row_problems(import_, built))
    return _report(items, import_, imports.run(import_, built))


def _check(import_: Import) -> None:
    if import_.problems:
        raise InvalidValues(import_.problems)
    for _, change in import_.updated:
        updates.check_plan(change, import_.given[change.new.name.lower()]["plan_hash"])


def _report(items: Sequence[Item], import_: Import, migrations: list[str]) -> JSONObject:
    created = {row.name for row in (*import_.made, *import_.views_made)}
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
        "updated_count": len(import_.updated) + len(import_.views_updated),
        "failed_count": 0,
        "collections": items_report,
        "migrations_created": migrations,
    }
