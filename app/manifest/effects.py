"""What the changes of collections mean: SQL, lost values, access."""

from __future__ import annotations

from dataclasses import replace

from app.collections import access, definitions, expression_names, imports, population, table
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.definitions import Definition
from app.errors import problem
from app.manifest.definitions import Comparison
from app.manifest.name_changes import NameChanges
from app.types import JSONObject

MAX_COUNTED = 10_000
"""Records whose access changes are counted up to this number, for each role and operation."""
NEW_FIELDS = "It uses fields that this manifest adds or renames, so its effect is not counted."


def statements(comparison: Comparison) -> list[str]:
    """The SQL of the plan, in its order."""
    renaming = [text for change in comparison.changes for text in change.renaming_statements]
    creating = [
        text for one in imports.creations(comparison.import_.made) for text in one.statements
    ]
    changing = [text for change in comparison.changes for text in change.further_statements]
    tables = [definitions.from_row(row).table for _, row in comparison.removed]
    removing = [
        text for place, one in enumerate(tables) for text in table.removal(one, tables[place + 1 :])
    ]
    return [*renaming, *creating, *changing, *removing]


def lost_values(comparison: Comparison) -> list[JSONObject]:
    """The fields and collections that go with their values, each with a number of records."""
    fields_ = [
        {"collection": change.old.name, **lost}
        for change in comparison.changes
        for lost in change.lost_values()
    ]
    rows = [row for _, row in comparison.removed]
    counts = collections.record_counts(rows)
    return fields_ + [
        {"collection": row.name, "field": None, "count": counts[row.id]} for row in rows
    ]


def access_changes(comparison: Comparison, names: NameChanges) -> list[JSONObject]:
    """How many records open or close for each role and operation; counts are limited.

    Roles have their present names.
    """
    changed = {change.old.id for change in comparison.changes}
    compared = [
        (change.new.name, change.old, _proposed(comparison, change, names))
        for change in comparison.changes
    ]
    compared += [
        (one.name, one, names.followed(one))
        for one in (definitions.get_all() if names.renames else ())
        if one.id not in changed
    ]
    return [
        {"collection": name, "role": entry["role"], "operation": entry["operation"]}
        | {side: entry[side]["count"] for side in ("gained", "lost")}
        for name, old, new in compared
        if new.rules != old.rules or names.affects(old) or names.affects(new)
        for entry in population.differences(old, new, None, MAX_COUNTED, names.renames)
        if entry["gained"]["count"] or entry["lost"]["count"]
    ]


def warnings(comparison: Comparison, names: NameChanges) -> list[JSONObject]:
    """The rules that `access_changes` cannot count, and those that name what nobody has."""
    uncounted = [
        problem(f"{change.new.name}.{name}", "not_counted", NEW_FIELDS)
        for change in comparison.changes
        for name, rule in _changed_rules(comparison, change).items()
        if not _is_countable(rule, change.old)
    ]
    gone = {change.old.name.lower() for change in comparison.changes}
    gone |= {row.name_key for _, row in comparison.removed}
    present = {one.name.lower(): one for one in definitions.get_all()}
    future = {key: one for key, one in present.items() if key not in gone}
    future |= comparison.definitions()
    return uncounted + [
        warning
        for one in future.values()
        for warning in expression_names.warnings(names.followed(one))
    ]


def _changed_rules(comparison: Comparison, change: Change) -> dict[str, str | None]:
    given = comparison.import_.rules.get(change.new.name.lower(), {})
    after = {**change.new.rules, **given}
    return {
        name: after[name] for name in collections.RULES if after[name] != change.old.rules[name]
    }


def _proposed(comparison: Comparison, change: Change, names: NameChanges) -> Definition:
    changed = _changed_rules(comparison, change)
    counted = {name: rule for name, rule in changed.items() if _is_countable(rule, change.old)}
    return names.followed(replace(change.old, rules={**change.old.rules, **counted}))


def _is_countable(rule: str | None, old: Definition) -> bool:
    return rule is None or access.rule_problem(rule, old.scope) is None
