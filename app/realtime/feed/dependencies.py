"""What a view rule reads of other records: memberships behind `@any`, and what references lead to.

A change of these records gives or takes what a reader sees of the collection, though no record of
it has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app import clock, rules
from app.collections.access import Access
from app.collections.definitions import Definition
from app.realtime.feed.states import Transition
from app.rules import Name, Node, Old, Subject, Subquery
from app.rules.nodes import Caller, Comparison, Inner, Junction, Some

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Dependency:
    """An `@any` or `@count` of a rule, for one caller."""

    part: Subquery
    definition: Definition
    """The collection whose records it looks at."""
    subject: Subject
    named: frozenset[str]
    """The fields that it reads of them."""
    own: Sequence[Node]
    """The parts of its condition that look at one of them alone."""
    tie: tuple[str, str] | None
    """A field of them that equals a field of the record that is judged."""
    of_caller: tuple[str, str] | None
    """A field of them that equals a property of the caller, and that property's value."""
    is_exact: bool
    """Whether its condition can be decided for a row that was read."""

    def concerned(self, transition: Transition) -> tuple[Row | None, Row | None] | None:
        """The record before and after a change, as far as it may count; None if it never did."""
        before, after = transition.before, transition.after
        if before and after and all(before.get(n) == after.get(n) for n in self.named):
            return None
        counts = [row if row and self._may_count(row) else None for row in (before, after)]
        return None if counts == [None, None] else (counts[0], counts[1])

    def _may_count(self, row: Row) -> bool:
        context = rules.Context({}, self.subject, now=clock.now(), inner=(row,))
        return all(rules.holds(part, context) for part in self.own)

    def matches(self, row: Row | None, judged: Mapping[Any, object]) -> bool:
        """Whether a record of the collection counts for one that is judged."""
        if row is None:
            return False
        context = rules.Context(judged, self.subject, now=clock.now(), inner=(row,))
        return rules.holds(self.part.condition, context)


def of_access(access: Access) -> Sequence[Dependency]:
    """The dependencies of a caller's rule, without those inside of others."""
    return [_dependency(access, part) for part in access.subqueries]


def _dependency(access: Access, part: Subquery) -> Dependency:
    whole = part.condition
    parts = whole.parts if isinstance(whole, Junction) and whole.operator == "and" else (whole,)
    own = [one for one in parts if all(map(_is_plain, rules.walk(one)))]
    inner = [one for one in rules.walk(whole) if isinstance(one, Inner | Some) and one.depth == 1]
    return Dependency(
        part,
        access.definition.related(part.collection),
        access.subject,
        frozenset(one.path[0] for one in inner),
        [one for one in own if not any(isinstance(sub, Name) for sub in rules.walk(one))],
        next(filter(None, map(_tie, parts)), None),
        next((found for one in parts if (found := _of_caller(one, access.subject))), None),
        all(map(_is_plain, rules.walk(whole))),
    )


def _is_plain(part: Node) -> bool:
    """Whether a part of a condition is decided by the record that it looks at, and the judged."""
    if isinstance(part, Name | Inner):
        return len(part.path) == 1 or part.many == len(part.path)
    return not (isinstance(part, Subquery | Old) or (isinstance(part, Some) and part.follows))


def _tie(part: Node) -> tuple[str, str] | None:
    for inner, outer in _equal(part):
        if isinstance(outer, Name) and inner.type is outer.type and _is_own(outer):
            return inner.path[0], outer.path[0]
    return None


def _of_caller(part: Node, subject: Subject) -> tuple[str, str] | None:
    for inner, outer in _equal(part):
        value = subject.value(outer) if isinstance(outer, Caller) else None
        if isinstance(value, str) and inner.type is rules.Type.TEXT:
            return inner.path[0], value
    return None


def _equal(part: Node) -> Iterator[tuple[Inner, Node]]:
    """The own fields of a record of the collection that have to equal something, with that."""
    if isinstance(part, Comparison) and part.operator == "=":
        for inner, outer in ((part.left, part.right), (part.right, part.left)):
            if isinstance(inner, Inner) and inner.depth == 1 and _is_own(inner):
                yield inner, outer


def _is_own(name: Name | Inner) -> bool:
    return (len(name.path), name.many) == (1, 0)


def read_by(definition: Definition) -> Mapping[str, Definition]:
    """The collections whose records a collection's view rule reads, by their tables."""
    return {one.table_name: one for one in definition.memo.get(_reads, definition)}


def is_reset_by(definition: Definition, transition: Transition) -> bool:
    """Whether a record changed that the view rule reads in a way that only lists can follow.

    Through references, or in an `@any` inside of another.
    """
    for one, (fields, any_row) in definition.memo.get(_reads, definition).items():
        before, after = transition.before, transition.after
        if one.table_name != transition.definition.table_name or not (fields or any_row):
            continue
        if transition.is_erased or (before and after is None):
            return True
        if before and after and any(before.get(n) != after.get(n) for n in fields):
            return True
        if any_row and before is None:
            return True
    return False


def _reads(definition: Definition) -> Mapping[Definition, tuple[frozenset[str], bool]]:
    """What the view rule reads: fields that a reset follows, and whether any row counts for it."""
    fields, any_row = defaultdict[Definition, set[str]](set), dict[Definition, bool]()
    condition = definition.conditions["view"]
    for part in rules.walk(condition) if condition else ():
        if isinstance(part, Subquery):
            target = definition.related(part.collection)
            any_row[target] = any_row.get(target, False) or part.depth > 1
        elif isinstance(part, Name | Inner):
            start = definition.related(part.collection) if isinstance(part, Inner) else definition
            if isinstance(part, Inner) and part.depth > 1:
                fields[start].add(part.path[0])
            for target, field in _passed(start, part.path):
                fields[target].add(field)
    return {one: (frozenset(fields[one]), any_row.get(one, False)) for one in {**any_row, **fields}}


def _passed(start: Definition, path: Sequence[str]) -> Iterator[tuple[Definition, str]]:
    """The collections that a dotted name leads to, each with the field that it reads there."""
    current: Definition | None = start
    for step, following in pairwise(path):
        current = current.target(step) if current else None
        if current is None:
            return
        yield current, following
