"""Predicts what a manifest does to collections: SQL, lost values, access, rule tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.accounts import names as known_names
from app.collections import (
    access,
    definitions,
    expression_names,
    fragments,
    imports,
    population,
    table,
    trials,
    views,
)
from app.collections import service as collections
from app.collections.changes import Change
from app.collections.definitions import Definition, ViewDefinition
from app.errors import InvalidValues, problem
from app.manifest.definitions import Comparison
from app.manifest.document import Document, Path
from app.manifest.name_changes import NameChanges
from app.types import JSONMapping, JSONObject

MAX_COUNTED = 10_000
"""Records whose access changes are counted up to this number, for each role and operation."""
ALLOW, DENY = "allow", "deny"
NEW_FIELDS = "It uses fields that this manifest adds or renames, so its effect is not counted."


def statements(comparison: Comparison) -> list[str]:
    """Return the SQL of the plan, in the order in which it runs."""
    result = [text for change in comparison.changes for text in change.renaming_statements]
    for creation in imports.creations(comparison.import_.made):
        result += creation.statements
    for change in comparison.changes:
        result += change.further_statements
    removed = [definitions.from_row(row).table for _, row in comparison.removed if row.view is None]
    for index, one in enumerate(removed, 1):
        # Each drops the references of those that remain, as they may refer to each other.
        result += table.removal(one, removed[index:])
    return result


def lost_values(comparison: Comparison) -> list[JSONObject]:
    """Return the fields and collections that lose their values, each with its number of records."""
    result: list[JSONObject] = [
        {"collection": change.old.name, **lost}
        for change in comparison.changes
        for lost in change.lost_values()
    ]
    rows = [row for _, row in comparison.removed if row.view is None]
    counts = collections.record_counts(rows)
    result += [{"collection": row.name, "field": None, "count": counts[row.id]} for row in rows]
    return result


def access_changes(comparison: Comparison, names: NameChanges) -> list[JSONObject]:
    """Count the records that open or close to each role by each operation, up to a limit.

    Roles have their present names.
    """
    result: list[JSONObject] = []
    for collection, present, resulting in _compared(comparison, names):
        is_same = (present.rules, present.fragments) == (resulting.rules, resulting.fragments)
        is_same = is_same and present.view is None  # a view follows what it reads
        if is_same and not names.affects(present) and not names.affects(resulting):
            continue
        result += [
            {
                "collection": collection,
                "role": difference.role,
                "operation": difference.operation,
                "gained": difference.gained.count,
                "lost": difference.lost.count,
            }
            for difference in population.differences(
                present,
                resulting,
                account_id=None,
                max_count=MAX_COUNTED,
                renames=names.renames,
                terms=names.terms,
            )
            if difference.gained.count or difference.lost.count
        ]
    return result


def _compared(
    comparison: Comparison, names: NameChanges
) -> Iterator[tuple[str, Definition, Definition]]:
    """The collections whose access may change: the new name, present and resulting definition."""
    counted = dict[str, Definition]()
    for change in comparison.changes:
        countable = {
            name: rule
            for name, rule in _changed_rules(comparison, change).items()
            if _is_countable(name, rule, change.old)
        }
        # The new rules over the present fields: only these have values to count by.
        proposed = replace(change.old, rules={**change.old.rules, **countable})
        proposed = names.counted(names.followed(fragments.with_current(proposed)))
        counted |= {change.old.name.lower(): proposed, change.new.name.lower(): proposed}
        yield change.new.name, change.old, proposed
    changed_ids = {change.old.id for change in comparison.changes}
    for unchanged in definitions.get_all():
        if unchanged.id in changed_ids:
            continue
        if names.renames or names.terms:  # which may change who passes any rule
            counted[unchanged.name.lower()] = names.followed(unchanged)
            yield unchanged.name, unchanged, names.followed(unchanged)
            continue
        resulting = names.counted(fragments.with_current(unchanged))
        if resulting.fragments != unchanged.fragments:
            counted[unchanged.name.lower()] = resulting
            yield unchanged.name, unchanged, resulting
    changed_views = {row.id: new for row, new in comparison.import_.views_updated}
    removed = {row.id for _, row in comparison.removed}
    for view in views.all_views():
        new = changed_views.get(view.id, view)
        if view.id in removed or not _reads_what_is_there(new):
            continue
        proposed = names.counted(names.followed(fragments.with_current(replace(new))))
        if not isinstance(proposed, ViewDefinition):
            raise LookupError(f"{proposed.name} is no view")
        read = {view.base, *view.targets.values()}
        with definitions.override(counted):  # what it reads is looked up once
            future = {proposed.base, *proposed.targets.values()}
        is_changed = view.id in changed_views or view.fragments != proposed.fragments
        if is_changed or read != future or names.renames or names.terms:
            yield proposed.name, view, proposed


def _reads_what_is_there(view: ViewDefinition) -> bool:
    problems = list[JSONObject]()
    views.specs(view.view, problems)
    return not [*problems, *views.where_problems(view.view, fragments.load())]


def warnings(comparison: Comparison, names: NameChanges) -> list[JSONObject]:
    """Warn of rules that `access_changes` cannot count, and of what is odd in rules."""
    result = [
        problem(f"{change.new.name}.{name}", "not_counted", NEW_FIELDS)
        for change in comparison.changes
        for name, rule in _changed_rules(comparison, change).items()
        if not _is_countable(name, rule, change.old)
    ]
    result += [
        problem(f"{new.name}.fields", "not_counted", NEW_FIELDS)
        for _, new in comparison.import_.views_updated
        if not _reads_what_is_there(new)
    ]
    resulting = comparison.definitions()
    replaced = {change.old.name.lower() for change in comparison.changes}
    replaced |= {row.name_key for _, row in comparison.removed}
    future = {one.name.lower(): one for one in definitions.get_all(with_views=True)}
    future = {key: one for key, one in future.items() if key not in replaced} | resulting
    with definitions.override(resulting):  # which views read
        for definition in future.values():
            result += expression_names.warnings(names.followed(definition))
        for definition in map(fragments.with_current, resulting.values()):
            result += trials.warnings_of_collection(definition)
    return result


def directory_warnings(content: JSONMapping) -> list[JSONObject]:
    """Warn of groups and attributes that the directory's rule names."""
    rule = content.get("directory", {}).get("rule")
    return [one | {"field": "directory.rule"} for one in known_names.warnings(rule)]


def _changed_rules(comparison: Comparison, change: Change) -> dict[str, str | None]:
    given = comparison.import_.rules.get(change.new.name.lower(), {})
    after = {**change.new.rules, **given}
    return {
        name: after[name] for name in collections.RULES if after[name] != change.old.rules[name]
    }


def _is_countable(name: str, rule: str | None, old: Definition) -> bool:
    present = fragments.with_current(replace(old, rules={**old.rules, name: rule}))
    return rule is None or access.rule_problem(rule, present.rule_scope(name)) is None


def run_rule_tests(
    document: Document, items: Mapping[Path, JSONMapping], future: Mapping[str, Definition]
) -> list[JSONObject]:
    """Run the rule tests of a manifest against the definitions that it leads to."""
    results = []
    for path, item in items.items():
        definition = future.get(item["name"].lower())
        if definition is None:
            continue
        for index, test in enumerate(item.get("tests", ())):
            rule = definition.rule(test["operation"])
            try:
                is_open = trials.evaluate(
                    rule, test["given"], test["as_"], test["records"], test.get("old")
                )
            except InvalidValues:  # the problems of the rule are reported anyway
                is_open = False
            actual, place = ALLOW if is_open else DENY, (*path, "tests", index)
            results.append(
                {
                    "collection": definition.name,
                    "operation": test["operation"],
                    "name": test.get("name"),
                    "expected": test["expect"],
                    "actual": actual,
                    "passed": actual == test["expect"],
                    "place": document.place(place),
                    "line": document.line(place),
                }
            )
    return results


def rule_test_problems(results: Sequence[JSONMapping]) -> list[JSONObject]:
    """Return a problem for each rule test that failed."""
    return [
        {
            "field": result["place"],
            "code": "rule_test_failed",
            "message": f"A rule test failed: it expected {result['expected']}.",
            "line": result["line"],
        }
        for result in results
        if not result["passed"]
    ]
