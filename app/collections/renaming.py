"""Rewrites what names renamed fields: expressions, field lists and indexes (contract 14)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from app.collections import definition as definitions
from app.collections.definition import Definition, is_expression
from app.errors import NotFound
from app.rules import Name, Node, RuleError, Sent, parse
from app.rules.functions import CALLERS
from app.rules.nodes import Call
from app.types import JSONMapping, JSONObject

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
PATH = re.compile(rf"{IDENTIFIER}(\s*\.\s*{IDENTIFIER})*")
LAST = re.compile(rf"{IDENTIFIER}(?=[\s)]*$)")

Renames = Mapping[str, str]
"""The new name of each renamed field."""


def renamed(old: Definition, renames: Renames) -> Definition:
    """The definition with other names of fields, in everything of it that names them."""
    if not renames:
        return old
    schema = tuple(_renamed_field(old, spec, renames) for spec in old.schema)
    indexes = tuple(
        {**spec, "fields": [_renamed_index_field(text, renames) for text in spec["fields"]]}
        for spec in old.indexes
    )
    return replace(old, schema=schema, indexes=indexes, rules=rules(old, old, renames))


def rules(of: Definition, old: Definition, renames: Renames) -> JSONObject:
    """The rules and field lists of a collection, which may be another one than `old`."""
    return {key: _renamed_rule(value, of, old, renames) for key, value in of.rules.items()}


def rules_elsewhere(old: Definition, renames: Renames) -> list[Definition]:
    """The other collections whose rules name renamed fields, with their new rules."""
    others = [one for one in definitions.get_all() if one.id != old.id] if renames else []
    followed = (replace(one, rules=rules(one, old, renames)) for one in others)
    return [new for new, one in zip(followed, others, strict=True) if new.rules != one.rules]


def _renamed_field(old: Definition, spec: JSONMapping, renames: Renames) -> JSONObject:
    expression = spec["expression"]
    if expression:
        expression = _rewritten(expression, old, old, renames)
    return {**spec, "name": renames.get(spec["name"], spec["name"]), "expression": expression}


def _renamed_index_field(text: str, renames: Renames) -> str:
    name = text.removeprefix("-")
    return text.removesuffix(name) + renames.get(name, name)


def _renamed_rule(value: object, of: Definition, old: Definition, renames: Renames) -> object:
    if isinstance(value, list):
        return [renames.get(name, name) for name in value] if of.id == old.id else value
    if isinstance(value, str) and is_expression(value) and (of.id == old.id or "." in value):
        return _rewritten(value, of, old, renames)
    return value


def _rewritten(text: str, of: Definition, old: Definition, renames: Renames) -> str:
    """An expression of a collection; one that does not parse stays as it is."""
    with suppress(RuleError):
        for part in sorted(_names(parse(text)), key=lambda part: part.start, reverse=True):
            source = text[part.start : part.end]  # with brackets around it
            if isinstance(part, Sent):
                name = renames.get(part.field, part.field) if of.id == old.id else part.field
                source = LAST.sub(name, source)
            elif isinstance(part, Name):
                path = ".".join(_renamed_path(part.path, of, old, renames))
                if path != ".".join(part.path):
                    source = PATH.sub(path, source, count=1)
            text = text[: part.start] + source + text[part.end :]
    return text


def _names(node: Node) -> Iterator[Node]:
    if isinstance(node, Name | Sent):
        yield node
    elif not (isinstance(node, Call) and node.name in CALLERS):  # whose arguments are words
        for child in node.children:
            yield from _names(child)


def _renamed_path(
    path: tuple[str, ...], of: Definition, old: Definition, renames: Renames
) -> Iterator[str]:
    current: Definition | None = of
    for step in path:
        is_own = current is not None and current.id == old.id
        yield renames.get(step, step) if is_own else step
        with suppress(NotFound):
            current = current.target(step) if current else None
