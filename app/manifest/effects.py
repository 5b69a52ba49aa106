"""What the changes of collections mean: SQL, lost values, access."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.collections import access, definition, imports, population, table
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.definition import Definition
from app.errors import problem
from app.manifest.definitions import Comparison
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
    tables = [definition.from_row(row).table for _, row in comparison.removed]
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


def access_changes(comparison: Comparison) -> list[JSONObject]:
    """How many records open or close for each role and operation; counts are limited."""
    return [
        {"collection": change.new.name, "role": entry["role"], "operation": entry["operation"]}
        | {side: entry[side]["count"] for side in ("gained", "lost")}
        for change in comparison.changes
        for entry in _differences(change.old, _changed_rules(comparison, change))
        if entry["gained"]["count"] or entry["lost"]["count"]
    ]


def warnings(comparison: Comparison) -> list[JSONObject]:
    """The rules that `access_changes` cannot count."""
    return [
        problem(f"{change.new.name}.{name}", "not_counted", NEW_FIELDS)
        for change in comparison.changes
        for name, rule in _changed_rules(comparison, change).items()
        if not _is_countable(rule, change.old)
    ]


def _changed_rules(comparison: Comparison, change: Change) -> dict[str, str | None]:
    given = comparison.import_.rules.get(change.new.name.lower(), {})
    after = {**change.new.rules, **given}
    return {
        name: after[name] for name in collections.RULES if after[name] != change.old.rules[name]
    }


def _differences(old: Definition, changed: Mapping[str, str | None]) -> list[JSONObject]:
    counted = {name: rule for name, rule in changed.items() if _is_countable(rule, old)}
    proposed = replace(old, rules={**old.rules, **counted})
    return population.differences(old, proposed, None, MAX_COUNTED) if counted else []


def _is_countable(rule: str | None, old: Definition) -> bool:
    return rule is None or access.rule_problem(rule, old.scope) is None
