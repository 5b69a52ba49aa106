"""Changed records that a reader's rule asks for by `@any` or `@count`, such as memberships."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from app.collections.definitions import Definition
from app.realtime.feed.dependencies import Dependency
from app.realtime.feed.states import Transition
from app.realtime.feed.visibility import View
from app.records.store import Row

ERASED = object()
"""Stands for the values of an erased record, of which none is known."""


class Touch(NamedTuple):
    """A changed record that counted for a reader's rule, or counts now."""

    dependency: Dependency
    transition: Transition
    before: Row | None
    after: Row | None

    @property
    def change(self) -> int:
        return self.transition.change

    @property
    def key(self) -> tuple[Dependency, str]:
        return self.dependency, self.transition.record_id

    @property
    def is_exact(self) -> bool:
        """Whether its effect is reported record by record; else the reader lists again."""
        return self.dependency.is_exact and not self.transition.is_erased


class Touches:
    """Touches in the order of their changes, by the records that they may concern."""

    def __init__(self, found: Iterable[Touch]) -> None:
        self.untied = list[Touch]()
        """Those that may concern any record."""
        self.tied: dict[str, dict[Any, list[Touch]]] = {}
        """The others, by a field of the records that they concern, and its value."""
        for one in sorted(found, key=attrgetter("change")):
            if one.dependency.tie is None:
                self.untied.append(one)
                continue
            inner, outer = one.dependency.tie
            by_value = self.tied.setdefault(outer, {})
            for value in {row[inner] for row in (one.before, one.after) if row} - {None}:
                by_value.setdefault(value, []).append(one)

    @property
    def key(self) -> object:
        """The same for touches that may concern the same records."""
        values = {name: frozenset(by_value) for name, by_value in self.tied.items()}
        return len(self.untied) or frozenset(values.items())

    def first(self, row: Row) -> Touch | None:
        """The first that may concern a record."""
        firsts = (some[0] for some in self._concerning(row) if some)
        return min(firsts, key=attrgetter("change"), default=None)

    def count(self, row: Row) -> int:
        """How many may concern a record."""
        return sum(map(len, self._concerning(row)))

    def of(self, row: Row) -> Sequence[Touch]:
        """Those that may concern a record."""
        return sorted((t for some in self._concerning(row) for t in some), key=attrgetter("change"))

    def _concerning(self, row: Row) -> Iterator[Sequence[Touch]]:
        yield self.untied
        for field, by_value in self.tied.items():
            yield by_value.get(row[field], ())


class Transitions:
    """Changes of records in their order, by collection, and by values of the records."""

    def __init__(self, found: Iterable[Transition] = ()) -> None:
        self._by_table: dict[str, list[Transition]] = {}
        self._by_value: dict[tuple[str, str], Mapping[Any, list[Transition]]] = {}
        self.add(found)

    def add(self, found: Iterable[Transition]) -> None:
        """Add later ones."""
        self._by_value.clear()
        for one in found:
            self._by_table.setdefault(one.definition.table_name, []).append(one)

    def of(self, definition: Definition) -> Sequence[Transition]:
        """Those of a collection."""
        return self._by_table.get(definition.table_name, ())

    def touches(self, view: View) -> Iterator[Touch]:
        """Those that count for the rule of a view, before or after."""
        for dependency in view.dependencies:
            for one in self._that_may_count(dependency):
                if one.is_erased:
                    yield Touch(dependency, one, None, None)
                elif counts := dependency.concerned(one):
                    yield Touch(dependency, one, *counts)

    def _that_may_count(self, dependency: Dependency) -> Iterable[Transition]:
        """Those of its collection; where it asks for records of the caller, only these."""
        if dependency.of_caller is None:
            return self.of(dependency.definition)
        field, value = dependency.of_caller
        key = (dependency.definition.table_name, field)
        if key not in self._by_value:  # once for all callers
            self._by_value[key] = _by_value(self.of(dependency.definition), field)
        by_value = self._by_value[key]
        return (*by_value.get(value, ()), *by_value[ERASED])


def _by_value(found: Iterable[Transition], field: str) -> Mapping[Any, list[Transition]]:
    """Changes by the values that a field had before and after."""
    by_value: dict[Any, list[Transition]] = {ERASED: []}
    for one in found:
        values = {row[field] for row in (one.before, one.after) if row is not None}
        for value in {ERASED} if one.is_erased else values:
            by_value.setdefault(value, []).append(one)
    return by_value
