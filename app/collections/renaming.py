"""Renames collections and fields in references, expressions, field lists and indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from app.collections import definitions
from app.collections.definitions import Definition, is_expression
from app.collections.table import table_name_for
from app.errors import NotFound
from app.rules import Inner, Name, Node, Old, RuleError, Sent, Subquery, named, parse, walk
from app.rules.functions import CALLERS
from app.rules.nodes import Call
from app.types import JSONMapping, JSONObject

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
AROUND = r"(?:@(?:record|outer|old)\s*\.\s*)?"
PATH = re.compile(rf"({AROUND}){IDENTIFIER}(\s*\.\s*{IDENTIFIER})*")
LAST = re.compile(rf"{IDENTIFIER}(?=[\s)]*$)")

Kind = TypeVar("Kind", bound=Definition)
Renames = Mapping[str, str]
"""The new name of each renamed field."""


def renamed(old: Kind, renames: Renames, name: str | None = None) -> Kind:
    """The definition with a new name, and new names of fields, in everything that names them."""
    if name is not None and name != old.name:
        referring_schema = referring(old, {old.name.lower(): name})
        own_rules = rules(old, old, {}, name)
        old = replace(old, name=name, table_name=table_name_for(name), schema=referring_schema)
        old = replace(old, rules=own_rules)
    if not renames:
        return old
    schema = []
    for spec in old.schema:
        text, name = spec["expression"], renames.get(spec["name"], spec["name"])
        expression = rewritten(text, old, old, renames) if text else text
        schema.append({**spec, "name": name, "expression": expression})
    indexes = []
    for spec in old.indexes:
        names = [text.removeprefix("-") for text in spec["fields"]]
        new_names = [
            text.removesuffix(name) + renames.get(name, name)  # "-" stays: descending
            for text, name in zip(spec["fields"], names, strict=True)
        ]
        indexes.append({**spec, "fields": new_names})
    new_rules = rules(old, old, renames)
    return replace(old, schema=tuple(schema), indexes=tuple(indexes), rules=new_rules)


def rules(of: Definition, old: Definition, renames: Renames, name: str | None = None) -> JSONObject:
    """The rules and field lists of a collection, which may be another one than `old`.

    `name` is the new one of the collection `old`.
    """
    renamed_rules = {}
    for key, value in of.rules.items():
        renamed_rules[key] = value
        if isinstance(value, list) and of.id == old.id:
            renamed_rules[key] = [renames.get(field, field) for field in value]
        elif isinstance(value, str) and is_expression(value):
            renamed_rules[key] = rewritten(value, of, old, renames, name)
    return renamed_rules


def elsewhere(old: Definition, renames: Renames, name: str) -> list[tuple[Definition, Definition]]:
    """The other collections that refer to this one or name renamed fields, before and after."""
    is_renamed = renames or name != old.name
    others = [one for one in definitions.get_all() if one.id != old.id] if is_renamed else []
    found = []
    for one in others:
        schema = referring(one, {old.name.lower(): name})
        after = replace(one, rules=rules(one, old, renames, name), schema=schema)
        if (after.rules, after.schema) != (one.rules, one.schema):
            found.append((one, after))
    return found


def referring(of: Definition, names: Mapping[str, str]) -> tuple[JSONMapping, ...]:
    """The schema of a collection, which refers to others by their new names (by old name key)."""
    return tuple(
        {**spec, "collection": names.get((spec["collection"] or "").lower(), spec["collection"])}
        for spec in of.schema
    )


def rewritten(
    text: str, of: Definition, old: Definition, renames: Renames, new_name: str | None = None
) -> str:
    """An expression of a collection; one that does not parse stays as it is."""
    with suppress(RuleError):
        for part in sorted(_names(parse(text)), key=_place, reverse=True):
            if isinstance(part, Subquery):
                if new_name is not None and part.collection.lower() == old.name.lower():
                    end = part.place + len(part.collection)
                    text = text[: part.place] + new_name + text[end:]
                continue
            source = text[part.start : part.end]  # with brackets around it
            if isinstance(part, Sent):
                name = renames.get(part.field, part.field) if of.id == old.id else part.field
                source = LAST.sub(name, source)
            elif isinstance(part, Name | Inner | Old):
                start: Definition | None = of
                if isinstance(part, Inner):
                    start = _related(of, part.collection)
                path = ".".join(_renamed_path(part.path, start, old, renames))
                if path != ".".join(part.path):
                    source = PATH.sub(rf"\g<1>{path}", source, count=1)
            text = text[: part.start] + source + text[part.end :]
    return text


def fields_named(text: str | None, of: Definition | None, old: Definition) -> set[str]:
    """The fields of a collection `old` that an expression names.

    `of` is the collection that the expression is about; without one, its own names are unknown.
    """
    found = set[str]()
    with suppress(RuleError):
        for part in _names(named.parse_stored(text or "")):
            if isinstance(part, Sent) and of is not None and of.id == old.id:
                found.add(part.field)
            elif isinstance(part, Name | Inner | Old):
                current = _related(of, part.collection) if isinstance(part, Inner) else of
                for step in part.path:
                    if current is not None and current.id == old.id:
                        found.add(step)
                    current = _followed(current, step)
    return found


def looks_at(text: str | None, name: str) -> bool:
    """Whether an expression looks at a collection by `@any` or `@count`."""
    with suppress(RuleError):
        parts = walk(named.parse_stored(text or ""))
        return any(
            isinstance(one, Subquery) and one.collection.lower() == name.lower() for one in parts
        )
    return False


def _followed(of: Definition | None, step: str) -> Definition | None:
    with suppress(NotFound):
        return of.target(step) if of else None
    return None


def _related(of: Definition | None, name: str) -> Definition | None:
    try:
        return of.related(name) if of else definitions.get(name)
    except NotFound:
        return None


def _place(part: Node) -> int:
    return part.place if isinstance(part, Subquery) else part.start


def _names(node: Node) -> Iterator[Node]:
    if isinstance(node, Name | Inner | Old | Sent | Subquery):
        yield node
    if not (isinstance(node, Call) and node.name in CALLERS):  # whose arguments are words
        for child in node.children:
            yield from _names(child)


def _renamed_path(
    path: tuple[str, ...], start: Definition | None, old: Definition, renames: Renames
) -> Iterator[str]:
    current = start
    for step in path:
        is_own = current is not None and current.id == old.id
        yield renames.get(step, step) if is_own else step
        current = _followed(current, step)
