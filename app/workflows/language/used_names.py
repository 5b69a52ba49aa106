"""The names that the templates and expressions of a step use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from app import rules
from app.workflows.language import expressions, templates
from app.workflows.language.definition import ACTION, WAIT_EVENT, Written

Path = tuple[str, ...]
INNER = ("steps", "branches", "expression", "condition")


def in_step(step: Written, place: str) -> Iterator[tuple[str, Path]]:
    """The names that a step uses, without those of inner steps, and their places."""
    prefix = "config" if step["type"] == ACTION else ""
    values = step["config"] if prefix else {n: v for n, v in step.items() if n not in INNER}
    for path, text in templates.expressions_in(values, f"{place}.{prefix}".rstrip(".")):
        if templates.PATH.fullmatch(text):
            yield path, tuple(text.split("."))
        else:
            yield from ((path, name) for name in _in(partial(expressions.value, text)))
    for name in ("expression", "condition"):
        if isinstance(step.get(name), str):
            found = in_condition(step[name], on_event=step["type"] == WAIT_EVENT)
            yield from ((f"{place}.{name}", path) for path in found)


def in_condition(text: str, *, on_event: bool = False) -> list[Path]:
    """The names of a condition."""
    return _in(partial(expressions.condition, text, on_event))


def in_filter(text: str) -> list[Path]:
    """The names of a filter, which may have templates."""
    scope = replace(expressions.FILTERS, is_stored=True)
    return _in(lambda: rules.condition(templates.blank(text), scope))


def _in(parse: Callable[[], rules.Node]) -> list[Path]:
    try:
        node = parse()
    except rules.RuleError:  # of an older version; running it says so
        return []
    return [part.path for part in rules.walk(node) if isinstance(part, rules.Name | rules.Old)]
