"""Fragments: named parts of rules, such as `staff: @has_any_role([agent, lead])`.

A collection has copies of those that its rules use, under its own version: a changed fragment is
effective at once in every process, as a changed rule is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace

import sqlalchemy as sa

from app import db, events, rules
from app.accounts import names
from app.accounts.names import Name, Use
from app.collections import access, definitions, expression_names, population, renaming, table
from app.collections.changes import IN_USE
from app.collections.definitions import Definition, fragment_names
from app.collections.models import Collection, RuleFragment
from app.db import versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.rules import OPERATIONS, named
from app.rules.nodes import Call
from app.types import JSONMapping, JSONObject

RULES = tuple(f"{operation}_rule" for operation in OPERATIONS)
WHERE = "where"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
MAX_FRAGMENTS = 100
MAX_COUNTED = 10_000
PLAN_STALE = (
    "The rules or fragments were changed after this plan, or the plan is of another change."
)
LOOKS_BACK = "A fragment does not gain or lose @old and @changed while rules use it: {}."
Texts = Mapping[str, str]

_instead: ContextVar[Texts | None] = ContextVar("instead", default=None)


@contextmanager
def override(texts: Texts) -> Iterator[None]:
    """Let `load` return these fragments."""
    token = _instead.set(texts)
    try:
        yield
    finally:
        _instead.reset(token)


def load() -> Texts:
    """All fragments by name."""
    instead = _instead.get()
    return stored_texts() if instead is None else instead


def stored_texts() -> Texts:
    """All fragments as they are stored."""
    query = sa.select(RuleFragment.name, RuleFragment.text).order_by(RuleFragment.name)
    return {row.name: row.text for row in db.db.session.execute(query)}


def used(texts: Mapping[str, object]) -> dict[str, str]:
    """The fragments that rules use, of those that there are."""
    wanted = _names_in(texts)
    return {n: text for n, text in load().items() if n in wanted} if wanted else {}


def used_by(of: Definition | Collection) -> dict[str, str]:
    """The fragments that the rules of a collection use, and the condition of a view."""
    return used(_texts_of(of))


def _texts_of(of: Definition | Collection) -> JSONMapping:
    return {**of.rules, WHERE: of.view["where"]} if of.view else of.rules


def with_current(definition: Definition) -> Definition:
    """The definition with the present texts of the fragments that it uses."""
    return replace(definition, fragments=used_by(definition))


def _names_in(texts: Mapping[str, object]) -> set[str]:
    found = (fragment_names(text) for text in texts.values() if isinstance(text, str))
    return set().union(*found)


@versioned_cache.reloading()
def plan(texts: Texts) -> JSONObject:
    """Return the hash of a change of all fragments, and its effect on each rule that uses them.

    Raises InvalidValues, or Conflict with the places of a fragment that is used.
    """
    present = load()
    affected = _checked(present, texts)
    effect: list[JSONObject] = []
    for old, new in affected:
        by_operation: dict[str, list[JSONObject]] = {
            operation: []
            for operation in OPERATIONS
            if old.effective_rule(operation) != new.effective_rule(operation)
        }
        for one in population.differences(old, new, None, MAX_COUNTED):
            if one.gained.count or one.lost.count:
                counts = {"gained": one.gained.count, "lost": one.lost.count}
                by_operation[one.operation].append({"role": one.role, **counts})
        for operation, roles in by_operation.items():
            rule = {"collection": old.name, "operation": operation, "rule": old.rule(operation)}
            effect.append({**rule, "roles": roles})
    return {"plan_hash": _hash(present, texts, affected), "effect": effect}


@table.schema_change
@versioned_cache.reloading()
def change(texts: Texts, plan_hash: str | None = None) -> Texts:
    """Replace all fragments; the rules that use them follow at once. Returns the fragments.

    Raises InvalidValues, and Conflict: with the places of a fragment that is used, or if this is
    not what was planned.
    """
    present = stored_texts()
    affected = _checked(present, texts)
    if plan_hash not in (None, _hash(present, texts, affected)):
        raise Conflict(PLAN_STALE, error="plan_stale")
    store(texts)
    store_copies(texts)
    return dict(sorted(texts.items()))


def store(texts: Texts) -> None:
    """Store checked fragments, in the open transaction, without the copies of collections."""
    session = db.db.session
    rows = {row.name: row for row in session.scalars(sa.select(RuleFragment).with_for_update())}
    for name, row in rows.items():
        if name not in texts:
            session.delete(row)
        elif row.text != texts[name]:
            row.text = texts[name]
    session.add_all(
        RuleFragment(name=name, text=text) for name, text in texts.items() if name not in rows
    )
    session.flush()


def problems_with(
    present: Texts, texts: Texts, resulting: Sequence[Definition]
) -> Iterator[JSONObject]:
    """The problems of a change of fragments, beside the collections as they will be."""
    yield from _problems(present, texts)
    changed = {name for name, text in present.items() if texts.get(name) != text}
    for name in sorted(changed):
        places = ", ".join(places_of(name, resulting))
        if places and name not in texts:
            yield problem(f"fragments.{name}", IN_USE, f"Rules use this fragment: {places}.")
        elif places and _looks_back(present[name]) != _looks_back(texts[name]):
            yield problem(f"fragments.{name}", IN_USE, LOOKS_BACK.format(places))
    with override(texts):
        for one in map(with_current, resulting):
            yield from _misfits(changed & texts.keys(), one, present)


def _misfits(changed: Set[str], of: Definition, present: Texts) -> Iterator[JSONObject]:
    """The rules of a collection that changed fragments do not fit."""
    for key in RULES:
        rule = of.rules.get(key) or ""
        if names_used := changed & fragment_names(rule):
            found = access.rule_problem(rule, of.rule_scope(key))
            for name in sorted(names_used):
                text = of.fragments.get(name)
                found = found or expression_names.problem_in(text, of, present.get(name))
            if found:
                yield found | {"field": f"{of.name}.{key}"}
    if of.view and changed & fragment_names(of.view[WHERE]):
        scope = replace(definitions.get(of.view["from"]).scope, fragments=of.fragments)
        if found := access.rule_problem(of.view[WHERE], scope):
            yield found | {"field": f"{of.name}.{WHERE}"}


def _checked(present: Texts, texts: Texts) -> list[tuple[Definition, Definition]]:
    """The collections whose rules use a changed fragment, before and after."""
    problems = [*_problems(present, texts)]
    if problems:
        raise InvalidValues(problems)
    changed = {name for name, text in present.items() if texts.get(name) != text}
    all_ = definitions.get_all(with_views=True) if changed else []
    places = {name: [*places_of(name, all_)] for name in sorted(changed)}
    in_use = [
        problem(place, IN_USE, f"This uses the fragment {name}, which would be removed.")
        for name in sorted(changed - texts.keys())
        for place in places[name]
    ]
    if in_use:
        shown = ", ".join(one["field"] for one in in_use)
        raise Conflict(f"Rules use these fragments: {shown}. Change them first.", details=in_use)
    for name in sorted(changed & texts.keys()):
        if places[name] and _looks_back(present[name]) != _looks_back(texts[name]):
            message = LOOKS_BACK.format(", ".join(places[name]))
            problems.append(problem(name, IN_USE, message))
    affected = []
    for old in all_:
        if changed & old.fragments.keys():
            new = replace(old, fragments={name: texts[name] for name in old.fragments})
            affected.append((old, new))
            problems += _misfits(changed, new, present)
    if problems:
        raise InvalidValues(problems)
    return affected


def _problems(present: Texts, texts: Texts) -> Iterator[JSONObject]:
    """The problems of fragments by themselves."""
    if len(texts) > MAX_FRAGMENTS:
        yield problem(None, "too_many", f"There are at most {MAX_FRAGMENTS} fragments.")
    for name, text in texts.items():
        if not NAME.fullmatch(name):
            message = "A fragment's name has letters, digits and underscores, at most 63."
            yield problem(name[:80], "name_invalid", message)
        elif not isinstance(text, str) or not text.strip():
            yield problem(name, "required", "Enter a condition.")
        elif present.get(name) != text:
            found = access.rule_problem(text, rules.ANYTHING)
            found = found or expression_names.problem_in(text, None)
            if found:
                yield found | {"field": name}


def places_of(name: str, of: Sequence[Definition]) -> Iterator[str]:
    """The rules, and conditions of views, that use a fragment."""
    for one in of:
        for key, text in _texts_of(one).items():
            if key in (*RULES, WHERE) and name in fragment_names(text):  # others are lists
                yield f"{one.name}.{key}"


def looking_at(name_keys: set[str]) -> Iterator[str]:
    """The fragments that look at any of these collections."""
    for name, text in load().items():
        with suppress(rules.RuleError):
            parts = rules.walk(rules.parse(text))
            looks = (one.collection.lower() for one in parts if isinstance(one, rules.Subquery))
            if not name_keys.isdisjoint(looks):
                yield f"fragments.{name}"


def _looks_back(text: str) -> bool:
    return any(
        isinstance(one, rules.Old) or (isinstance(one, Call) and one.name == "@changed")
        for one in rules.walk(rules.parse(text))
    )


def _hash(present: Texts, texts: Texts, affected: Sequence[tuple[Definition, Definition]]) -> str:
    versions = sorted((old.id, old.version) for old, _ in affected)
    stated = json.dumps([sorted(present.items()), sorted(texts.items()), versions])
    return hashlib.sha256(stated.encode()).hexdigest()


def store_copies(texts: Texts) -> None:
    """Give the collections that use fragments their new texts, under new versions."""
    query = sa.select(Collection).order_by(Collection.id).with_for_update()
    for row in db.db.session.scalars(query.execution_options(populate_existing=True)).all():
        copies = {n: texts[n] for n in _names_in(_texts_of(row)) if n in texts}
        if copies != (row.fragments or {}):
            row.fragments = copies
            row.version += 1


@names.place
def in_fragments(name: Name) -> Iterator[Use]:
    """The fragments that name a role, a group or an attribute."""
    all_ = definitions.get_all(with_views=True)
    for fragment, text in load().items():
        using = [one for one in all_ if fragment in one.fragments]
        tests = [expression_names.role_test(one) for one in using or all_] or [named.no_role]
        naming = [test for test in tests if named.names(text, name.kind, name.value, test)]
        if naming:
            # What names a person's role for one collection may name a field for another.
            is_clear = len(naming) == len(tests) or not using
            follow = _follow if is_clear else None
            yield Use("fragments", {fragment: text}, follow, role_tests={fragment: naming[0]})


def _follow(changed: JSONMapping) -> None:
    for row in db.db.session.scalars(sa.select(RuleFragment)).all():
        row.text = changed.get(row.name, row.text)
    db.db.session.flush()
    store_copies(stored_texts())


@events.subscribe(events.FieldNamesEnd)
def find_fields(event: events.FieldNamesEnd) -> None:
    """Add a problem for each fragment that names one of the fields, for any rule that uses it."""
    all_ = definitions.get_all(with_views=True)
    for fragment, text in load().items():
        using = [one for one in all_ if fragment in one.fragments]
        found = [renaming.fields_named(text, one, event.definition) for one in (*using, None)]
        for name in sorted(event.names & set().union(*found)):
            message = f"The fragment {fragment} names {name}."
            event.problems.append(problem(f"fragments.{fragment}", "field_in_use", message))


@events.subscribe(events.CollectionNameEnds)
def find_collection(event: events.CollectionNameEnds) -> None:
    """Add a problem for each fragment that looks at the collection."""
    for place in looking_at({event.name.lower()}):
        message = f"This looks at {event.name}."
        event.problems.append(problem(place, "collection_in_use", message))
