"""What a caller may know of a change, judged on the record before and after it.

Rules, field lists and masks are those of now. A record that comes into view counts as created, one
that leaves it as deleted, without values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from app import clock, rules
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections.access import Access, Filter
from app.collections.definition import Definition
from app.errors import InvalidValues, problem
from app.feed.states import Transition
from app.records.read import views
from app.records.store import Row, references
from app.types import JSONObject

LINKED = "Filters of changes cannot follow references."
Paths = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Event:
    """A change as a caller may know it; `record` and `previous` are stored rows."""

    source: Transition
    operation: str
    record: Row | None = None
    previous: Row | None = None
    hidden: bool = False
    """Whether the record has only left what the caller may view or filters for."""

    @property
    def change(self) -> int:
        """The number of the change."""
        return self.source.change


@dataclass(frozen=True, eq=False)
class View:
    """What a caller may view of a collection, and filters for."""

    access: Access
    filter: Filter | None = None

    @property
    def definition(self) -> Definition:
        """The collection."""
        return self.access.definition

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields that the caller may view."""
        return tuple(self.access.readable)

    @cached_property
    def shown(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """What its rendered records depend on: the fields, and those that are masked."""
        return self.names, frozenset(self.access.masked)

    def event(self, one: Transition, linked: Linked) -> Event | None:
        """A change as the caller may know it; None if it is none of its concern."""
        was, is_ = self._includes(one.before, linked), self._includes(one.after, linked)
        if was and is_:
            return Event(one, "update", one.after, one.before)
        if is_:
            return Event(one, "create", one.after)
        if was and one.after is None:
            return Event(one, "delete", None, one.before)
        is_gone = was or (one.is_erased and self.includes_all)
        return Event(one, "delete", hidden=True) if is_gone else None

    @property
    def includes_all(self) -> bool:
        """Whether it includes every record, also those of which nothing is known any more."""
        return self.access.condition is None and self.filter is None

    def _includes(self, row: Row | None, linked: Linked) -> bool:
        if row is None:
            return False
        values = linked.of(row)
        if not self.access.allows(values):
            return False
        if self.filter is None:
            return True
        context = rules.Context(values, self.access.subject, now=clock.now())
        return rules.holds(self.filter.node, context)

    def render(self, row: Row) -> JSONObject:
        """A row as the caller may view it."""
        return views.render(row, self.names, self.access)


class Linked:
    """Rows with the values of dotted names in rules, read for all of them at once."""

    def __init__(self, transitions: Sequence[Transition], views: Iterable[View]) -> None:
        self._values: dict[int, Row] = {}
        for definition, paths in _paths(views).items():
            rows = [
                row
                for one in transitions
                for row in (one.before, one.after)
                if row is not None and one.definition is definition
            ]
            linked = references.resolve_unstored(definition, rows, paths)
            for row, values in zip(rows, linked, strict=True):
                self._values[id(row)] = {**row, **values}

    def of(self, row: Row) -> Row:
        """The row with these values."""
        return self._values.get(id(row), row)


def _paths(views: Iterable[View]) -> Mapping[Definition, Paths]:
    paths: dict[Definition, Paths] = {}
    for view in views:
        if view.access.follows:
            earlier = paths.get(view.definition, frozenset())
            paths[view.definition] = earlier | view.access.follows
    return paths


def view_of(caller: Principal, definition: Definition, filter: str = "") -> View:
    """What a caller may view of a collection. Raises Forbidden, Unauthorized, InvalidValues."""
    access = accesses.for_operation(caller, definition, "view")
    access.check_open()
    return View(access, _parsed(access, filter) if filter.strip() else None)


def view_if_open(caller: Principal, definition: Definition) -> View | None:
    """What a caller may view of a collection; None if that is nothing."""
    access = accesses.if_open(caller, definition, "view")
    return View(access) if access else None


def _parsed(access: Access, text: str) -> Filter:
    try:
        parsed = accesses.read_filter(access, text)
        if accesses.dotted_names(parsed.node):
            raise rules.RuleError(LINKED, 0)
    except rules.RuleError as error:
        wrong = problem("filter", "filter_invalid", str(error), position=error.position)
        raise InvalidValues([wrong]) from None
    return parsed
