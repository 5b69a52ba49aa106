"""Compares the collections of a manifest with the stored ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app import db
from app.collections import definitions, fragments, imports, removal, schema
from app.collections import service as collections
from app.collections.changes import Change, Operation
from app.collections.definitions import Definition
from app.collections.imports import Import
from app.collections.index_builds import Builds
from app.collections.models import Collection
from app.db.types import json_equal
from app.errors import Conflict
from app.manifest import export
from app.manifest.document import Document, Path, path_of
from app.types import JSONMapping, JSONObject


@dataclass
class Comparison:
    """The changes that the collections of a manifest need."""

    document: Document
    items: Mapping[Path, JSONMapping]
    """The collections that shall exist, by place."""
    import_: Import = field(default_factory=Import)
    removed: Sequence[tuple[Path, Collection]] = ()
    problems: list[JSONObject] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        """The changes of the collections that exist."""
        return [change for _, change in self.import_.updated]

    def definitions(self) -> dict[str, Definition]:
        """Return the resulting definitions by name key, with the rules of the manifest."""
        return {
            key: fragments.with_current(
                replace(one, rules={**one.rules, **self.import_.rules.get(key, {})})
            )
            for key, one in self.import_.definitions().items()
        }

    def add_problem(self, problem: JSONMapping) -> None:
        """Add a problem of the import, with its place and line in the manifest."""
        name, _, rest = str(problem["field"]).partition(".")
        path, item = self.find(name)
        if not item:  # of a collection that the manifest does not have
            self.problems.append({**problem})
            return
        inner = path_of(rest)
        fields = [spec["name"] for spec in item.get("schema", ())]
        if inner and inner[0] in fields:
            is_type = problem["code"] == "type_invalid" and len(inner) == 1
            inner = ("schema", fields.index(inner[0]), *inner[1:], *(("type",) if is_type else ()))
        elif inner and inner[0] in (*collections.RULES, *collections.LISTS):
            inner = ("rules", *inner)
        place = self.document.problem((*path, *inner), problem["code"], problem["message"])
        self.problems.append({**problem, **place})

    def new_tests(self, row: Collection, name: str) -> list[JSONObject] | None:
        """Return the rule tests that a collection gets; None if they stay."""
        (*_, index), item = self.find(name)
        if "tests" not in item:
            return None
        stated: list[JSONObject] = self.document.content["collections"][index]["tests"]
        return None if json_equal(row.tests or [], stated) else stated

    def find(self, name: str) -> tuple[Path, JSONMapping]:
        """Return the path and item of a collection, by its new or former name."""
        for path, item in self.items.items():
            names = {item["name"].lower(), str(item.get("rename_from") or "").lower()}
            if name.lower() in names:
                return path, item
        return ("collections",), {}


def compare(document: Document, content: JSONMapping, *, lock: bool = False) -> Comparison:
    """Compare the collections of a manifest with the stored ones, which `lock` keeps locked."""
    listed: dict[Path, JSONMapping] = {
        ("collections", index): item for index, item in enumerate(content.get("collections", ()))
    }
    items = {path: item for path, item in listed.items() if not item.get("removed")}
    rows = imports.present([*items.values()], lock=lock)
    if lock:
        imports.lock_renamed([*items.values()], rows)
    comparison = Comparison(document, items)
    for path, item in items.items():
        if "schema" not in item and not imports.is_view(item, rows) and _row(item, rows) is None:
            message = "A new collection needs a schema."
            comparison.problems.append(document.problem(path, "required", message))
    try:
        comparison.import_ = imports.plan([_item(one, rows) for one in items.values()], rows)
    except Conflict as error:
        message = error.message
        comparison.problems.append(document.problem(("collections",), error.error, message))
    for problem in comparison.import_.problems:
        comparison.add_problem(problem)
    _compare_removed(comparison, listed)
    return comparison


def _row(item: JSONMapping, rows: Mapping[str, Collection]) -> Collection | None:
    former = str(item.get("rename_from") or "").lower()
    return rows.get(item["name"].lower()) or rows.get(former)


def _item(item: JSONMapping, rows: Mapping[str, Collection]) -> JSONObject:
    """Return an item as an import takes it: absent fields stay, others are stated as a whole."""
    if imports.is_view(item, rows):
        return {**item}
    specs, row = item.get("schema", []), _row(item, rows)
    present = {spec["name"] for spec in row.schema} if row else set()
    # Removed fields stay listed when a manifest is applied again.
    removed = [name for name in item.get("remove_fields", ()) if name in present]
    if row is None:
        return {**item, "schema": specs, "remove_fields": removed}
    complete = []
    for spec in specs:
        former = {"rename_from": spec["rename_from"]} if spec.get("rename_from") else {}
        complete.append({**schema.complete(spec), **former})
    return {**item, "schema": complete, "remove_fields": removed, "partial": True}


def _compare_removed(comparison: Comparison, listed: Mapping[Path, JSONMapping]) -> None:
    removed = {path: item for path, item in listed.items() if item.get("removed")}
    rows = imports.present([*removed.values()])
    comparison.removed = [
        (path, rows[item["name"].lower()])
        for path, item in removed.items()
        if item["name"].lower() in rows
    ]
    if not comparison.removed:
        return
    future = {one.name.lower(): one for one in definitions.get_all(with_views=True)}
    for change in comparison.changes:
        future.pop(change.old.name.lower(), None)
    future |= comparison.import_.definitions()
    named = future | comparison.definitions()
    keys = {row.name_key for _, row in comparison.removed}
    for path, row in comparison.removed:
        referring = sorted(
            one.name
            for key, one in future.items()
            if key not in keys
            and row.name_key
            in {(one.view or {}).get("from", "").lower()}.union(
                (spec["collection"] or "").lower() for spec in one.schema
            )
        )
        if referring:
            message = f"Other collections refer to this one: {', '.join(referring)}."
            comparison.problems.append(comparison.document.problem(path, "in_use", message))
        rules_naming = removal.naming(
            {row.name_key}, (one for key, one in named.items() if key not in keys)
        )
        if places := [*rules_naming, *fragments.looking_at({row.name_key})]:
            message = removal.NAMED.format(", ".join(places))
            comparison.problems.append(comparison.document.problem(path, "in_use", message))


def operations(comparison: Comparison) -> list[JSONObject]:
    """Return what the plan shows of collections: created, changed, then removed ones."""
    result, line = [], comparison.document.line
    for row in comparison.import_.made:
        added = [
            {"operation": "add_field", "field": spec["name"], "property": None}
            for spec in row.schema
        ]
        result.append(_operation(row.name, "create", added, line(comparison.find(row.name)[0])))
    for row in comparison.import_.views_made:
        result.append(_operation(row.name, "create", [], line(comparison.find(row.name)[0])))
    for row, new in comparison.import_.views_updated:
        before, after = ({"name": one.name, **(one.view or {})} for one in (row, new))
        changes = [
            *_property_changes(Operation.CHANGE_VIEW, before, after),
            *_property_changes(Operation.CHANGE_RULE, row.rules, new.rules),
        ]
        if comparison.new_tests(row, new.name) is not None:
            changes.append({"operation": "change_tests", "field": None, "property": "tests"})
        if changes:
            path, _ = comparison.find(new.name)
            result.append(_operation(row.name, "update", changes, line(path)))
    for row, change in comparison.import_.updated:
        key = change.new.name.lower()
        rules, present = comparison.import_.rules.get(key, {}), change.new.rules
        stored_options = {"require_signature": False, **row.options}
        options = comparison.import_.given[key]["options"]
        changes = [
            *change.operations,
            *_property_changes("change_rule", present, rules),
            *_property_changes("change_option", stored_options, options),
        ]
        if comparison.new_tests(row, change.new.name) is not None:
            changes.append({"operation": "change_tests", "field": None, "property": "tests"})
        if changes:
            path, _ = comparison.find(change.new.name)
            result.append(_operation(change.old.name, "update", changes, line(path)))
    result += [_operation(row.name, "remove", [], line(path)) for path, row in comparison.removed]
    return result


def _property_changes(
    operation: str, present: JSONMapping, wanted: JSONMapping
) -> list[JSONObject]:
    return [
        {"operation": operation, "field": None, "property": name}
        | {"before": present.get(name), "after": value}
        for name, value in wanted.items()
        if present.get(name) != value
    ]


def _operation(name: str, action: str, changes: list[JSONObject], line: int | None) -> JSONObject:
    subject = {"kind": "collection", "account": None, "name": name}
    return {**subject, "action": action, "changes": changes, "line": line}


def run(comparison: Comparison, built: Builds) -> list[str]:
    """Carry out the changes in the open transaction. Returns the ids of the new revisions."""
    import_ = comparison.import_
    changed = (*import_.updated, *import_.views_updated)
    rows = [*import_.made, *import_.views_made, *(row for row, _ in changed)]
    revisions = imports.run(comparison.import_, built)
    for row in rows:
        if (tests := comparison.new_tests(row, row.name)) is not None:
            row.tests = tests
    db.db.session.flush()
    ids = [row.id for _, row in comparison.removed]
    if ids:
        result = removal.delete(ids[0], ids[1:])
        dropped = [result, *result.get("also_deleted", ())]
        revisions += [one["migration_revision"] for one in dropped if one["migration_revision"]]
    return revisions


def reverse(comparison: Comparison) -> list[JSONObject]:
    """Return the items that undo the changes; removed values stay lost."""
    items: list[JSONObject] = [
        {"name": row.name, "removed": True}
        for row in (*comparison.import_.views_made, *comparison.import_.made)
    ]
    changed = {operation["name"] for operation in operations(comparison)}
    for row, change in comparison.import_.updated:
        old = change.old
        if old.name not in changed:
            continue
        body = dict(change.reverse)
        body["schema"] = [export.compact(spec) for spec in body.get("schema", ())]
        former = {"rename_from": change.new.name} if change.former_name else {}
        rules = {name: old.rules[name] for name in (*collections.RULES, *collections.LISTS)}
        added = dict.fromkeys(change.new.options.keys() - old.options.keys())
        options = {"options": {**added, **old.options}} if old.options or added else {}
        has_new = comparison.new_tests(row, change.new.name) is not None
        tests = {"tests": row.tests} if has_new else {}
        items.append({**body, "name": old.name, **former, "rules": rules, **options, **tests})
    for row, new in comparison.import_.views_updated:
        if row.name in changed:
            former = {"rename_from": new.name} if new.name != row.name else {}
            rules = {key: row.rules[key] for key in (*collections.RULES, *collections.LISTS)}
            view = {"type": "view", **(row.view or {}), "rules": rules}
            items.append({"name": row.name, **former, **view})
    names = [row.name for _, row in comparison.removed]
    return [*items, *(export.collections(names) if names else ())]
