"""Runs the rule tests of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.collections import trials
from app.collections.definitions import Definition
from app.errors import InvalidValues
from app.manifest.document import Document, Path
from app.types import JSONMapping, JSONObject

ALLOW, DENY = "allow", "deny"


def run(
    document: Document, items: Mapping[Path, JSONMapping], definitions: Mapping[str, Definition]
) -> list[JSONObject]:
    """The results of all tests against the definitions that the manifest leads to."""
    return [
        result
        for path, item in items.items()
        if item["name"].lower() in definitions
        for result in _results(document, path, item, definitions[item["name"].lower()])
    ]


def _results(
    document: Document, path: Path, item: JSONMapping, definition: Definition
) -> Iterator[JSONObject]:
    for index, test in enumerate(item.get("tests", ())):
        actual = _evaluate(definition.rule(test["operation"]), test)
        yield {
            "collection": definition.name,
            "operation": test["operation"],
            "name": test.get("name"),
            "expected": test["expect"],
            "actual": actual,
            "passed": actual == test["expect"],
            "line": document.line((*path, "tests", index)),
        }


def _evaluate(rule: str | None, test: JSONMapping) -> str:
    try:
        is_open = trials.evaluate(rule, test["given"], test["as_"])
    except InvalidValues:  # the problems of the rule are reported anyway
        return DENY
    return ALLOW if is_open else DENY


def problems(results: Sequence[JSONMapping]) -> list[JSONObject]:
    """A problem for each test that failed."""
    return [
        {
            "field": f"{result['collection']}.{result['operation']}_rule",
            "code": "rule_test_failed",
            "message": f"A rule test failed: it expected {result['expected']}.",
            "line": result["line"],
        }
        for result in results
        if not result["passed"]
    ]
