"""Decides what a caller may know of a change, by the record before and after it.

Rules, field lists and masks are those of now. A record that comes into view counts as created, one
that leaves it as deleted, without values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app import clock, rules
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.access import Access, Filter
from app.collections.definitions import Definition
from app.collections.people import People
from app.db.versioned_cache import VersionCheck
from app.errors import InvalidValues, NotFound, problem
from app.realtime.feed import dependencies
from app.realtime.feed.dependencies import Dependency
from app.realtime.feed.states import Transition
from app.records.read import views
from app.records.store import Row, references
from app.types import JSONMapping, JSONObject, cached_property

MAX_PATHS = 500  # columns of one statement
Path = tuple[str, ...]


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
        return self.source.change


@dataclass(frozen=True, eq=False)
class View:
    """A caller's access to a collection, and the caller's filter."""

    access: Access
    filter: Filter | None = None
    referenced: Mapping[Path, Access] = field(default_factory=dict)
    """The access to the records that the filter's references lead to, by the path to them."""

    @property
    def definition(self) -> Definition:
        return self.access.definition

    @property
    def is_current(self) -> bool:
        """Whether the filter's references still lead to the same collections."""
        return all(_is_current(one.definition) for one in self.referenced.values())

    @cached_property
    def version_checks(self) -> frozenset[VersionCheck]:
        """The version checks of the collections that the filter's references lead to."""
        referenced = self.referenced.values()
        return frozenset(check for one in referenced for check in one.definition.version_checks)

    @cached_property
    def follows(self) -> frozenset[Path]:
        """The dotted names that the rule and the filter need."""
        needed = (
            path + part.path
            for path, one in self.referenced.items()
            if one.condition
            for part in rules.walk(one.condition)
            if isinstance(part, rules.Name)
        )
        return self.access.follows | self._filtered_by | frozenset(needed)

    @cached_property
    def _filtered_by(self) -> frozenset[Path]:
        return accesses.dotted_names(self.filter.node) if self.filter else frozenset()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields that the caller may view."""
        return tuple(self.access.readable)

    @cached_property
    def shown(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """The key of its rendered records: the fields, and those that are masked."""
        return self.names, frozenset(self.access.masked)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The same for callers who see the same of records, for as long as the view is there."""
        filter = self.filter and self.filter.node
        return id(self.access.condition), id(filter), self.access.subject

    @cached_property
    def dependencies(self) -> Sequence[Dependency]:
        """What the caller's rule asks of other records by `@any` and `@count`."""
        return dependencies.of_access(self.access)

    @cached_property
    def watched(self) -> Mapping[str, Definition]:
        """The collections of these records, by their tables."""
        return {one.definition.table_name: one.definition for one in self.dependencies}

    def event(self, transition: Transition, linked: Linked) -> Event | None:
        """A change as the caller may know it; None if it does not concern the caller."""
        was_in_view = self._includes(transition.before, linked)
        is_in_view = self._includes(transition.after, linked)
        if was_in_view and is_in_view:
            return Event(transition, "update", transition.after, transition.before)
        if is_in_view:
            return Event(transition, "create", transition.after)
        if was_in_view and transition.after is None:
            return Event(transition, "delete", None, transition.before)
        is_gone = was_in_view or (transition.is_erased and self.includes_all)
        return Event(transition, "delete", hidden=True) if is_gone else None

    @property
    def includes_all(self) -> bool:
        """Whether it includes every record, also those of which nothing is known any more."""
        return self.access.condition is None and self.filter is None

    def _includes(self, row: Row | None, linked: Linked) -> bool:
        return row is not None and self.admits(linked.of(row, self))

    def admits(self, values: Row) -> bool:
        """Whether it includes a record, given all values that the rule and the filter need."""
        if not self.access.allows(values):
            return False
        if self.filter is None:
            return True
        reached, caller = self._reached(values), self.access.subject
        context = rules.Context(reached, caller, now=clock.now(), budget=rules.Budget())
        try:
            return rules.holds(self.filter.node, context)
        except rules.OverBudget:  # only the filter is undecided: the caller may view the record
            return True

    def _reached(self, values: Row) -> Row:
        """The values, without those of referenced records that the caller may not view."""
        hidden = [
            path for path, one in self.referenced.items() if not one.allows(_below(path, values))
        ]
        withheld = (
            ".".join(name)
            for name in self._filtered_by
            for path in hidden
            if name[: len(path)] == path
        )
        values = {**values, **dict.fromkeys(withheld)} if hidden else values
        for path, one in self.referenced.items():
            whole = f"{'.'.join(path)}.*"
            if whole in values:
                listed = [entry for entry in values[whole] if one.allows(entry)]
                values = {**values, whole: [self._entry(path, entry) for entry in listed]}
        return values

    def _entry(self, path: Path, entry: Row) -> Row:
        """The values of an entry of a list, without those of records behind it that are hidden."""
        for further, one in self.referenced.items():
            rest = further[len(path) :]
            if further[: len(path)] == path and rest and not one.allows(_below(rest, entry)):
                start = ".".join(rest) + "."
                entry = {n: None if n.startswith(start) else v for n, v in entry.items()}
        return entry

    def render(self, row: Row) -> JSONObject:
        """A row as the caller may view it."""
        return views.render(row, self.names, self.access)


class Linked:
    """Rows with the values of dotted names in rules and filters, read for all of them at once.

    And with what each caller's rule finds by `@any`.
    """

    def __init__(self, transitions: Sequence[Transition], views: Iterable[View]) -> None:
        self._values: dict[int, JSONObject] = {}
        self._judged: dict[View, Mapping[int, Row]] = {}
        views = list(views)
        rows: dict[Definition, list[Row]] = {}
        for one in transitions:
            both = (row for row in (one.before, one.after) if row is not None)
            rows.setdefault(one.definition, []).extend(both)
        followed: dict[Definition, set[Path]] = {}
        for view in views:
            if view.follows and view.definition in rows:
                followed.setdefault(view.definition, set()).update(view.follows)
        for definition, unordered in followed.items():
            paths, own = sorted(unordered), rows[definition]
            for row in own:
                self._values[id(row)] = {**row}
            for start in range(0, len(paths), MAX_PATHS):
                part = paths[start : start + MAX_PATHS]
                linked = references.resolve_unstored(definition, own, part)
                for row, values in zip(own, linked, strict=True):
                    _merge(self._values[id(row)], values)
        for view in views:
            if view.access.subqueries and (own := rows.get(view.definition, [])):
                found = references.judged(view.access, list(map(self._linked, own)))
                self._judged[view] = dict(zip(map(id, own), found, strict=True))

    def of(self, row: Row, view: View) -> Row:
        return self._judged.get(view, {}).get(id(row)) or self._linked(row)

    def _linked(self, row: Row) -> Row:
        return self._values.get(id(row), row)


def _merge(known: JSONObject, more: JSONMapping) -> None:
    """Add values of names; those of entries of lists (`<path>.*`) entry by entry."""
    for name, value in more.items():
        if name.endswith(".*") and name in known:
            value = [{**old, **new} for old, new in zip(known[name], value, strict=True)]
        known[name] = value


def _below(path: Path, values: Row) -> Row:
    """The values of the record that a path leads to, by their names there."""
    start = ".".join(path) + "."
    return {name[len(start) :]: one for name, one in values.items() if name.startswith(start)}


def _is_current(definition: Definition) -> bool:
    try:
        return definitions.get(definition.name) is definition
    except NotFound:
        return False


def view_of(caller: Principal, definition: Definition, filter: str = "") -> View:
    """The caller's view of a collection. Raises Forbidden, Unauthorized, InvalidValues."""
    access = accesses.for_operation(caller, definition, "view")
    access.check_open()
    if definition.view is not None:
        raise definitions.NoRecordsOfItsOwn
    if not filter.strip():
        return View(access)
    try:
        parsed = accesses.read_filter(access, filter)
        if found := next(rules.subqueries(parsed.node), None):
            raise rules.RuleError(f"@{found.function} cannot be used here.", found.start)
    except rules.RuleError as error:
        wrong = problem(
            "filter", error.code or "filter_invalid", str(error), position=error.position
        )
        raise InvalidValues([wrong]) from None
    view = View(access, parsed, dict(_referenced(access, parsed)))
    names = [part for part in rules.walk(parsed.node) if isinstance(part, rules.Name)]
    behind_lists = {n.path[:end] for n in names if n.many for end in range(n.many, len(n.path))}
    for path, one in view.referenced.items():
        message = ""
        if one.subqueries:
            message = f"The rule behind {'.'.join(path)} uses @any: filter by another field."
        elif path in behind_lists and one.condition and rules.goes_through_list(one.condition):
            message = f"The rule behind {'.'.join(path)} goes through a list, too."
        if message:
            raise InvalidValues([problem("filter", "filter_invalid", message, position=0)])
    return view


def view_if_open(caller: Principal, definition: Definition) -> View | None:
    """The caller's view of a collection; None if it is closed."""
    access = accesses.if_open(caller, definition, "view")
    return View(access) if access else None


def _referenced(access: Access, parsed: Filter) -> Iterator[tuple[Path, Access]]:
    for name in accesses.dotted_names(parsed.node):
        target: Definition | People | None = access.definition
        for length, step in enumerate(name[:-1], start=1):
            if target is not None and step in target.files:
                break  # the next name is a property of the file
            target = target.followed(step) if target else None
            if isinstance(target, People):
                break  # the filter was checked for what the caller sees of people
            if target is None:  # removed meanwhile
                raise NotFound("There is no such collection.")
            yield name[:length], accesses.for_operation(access.caller, target, "view")
