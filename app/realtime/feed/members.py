"""What a change of other records gives a reader of a collection, or takes: exactly, by `@any`.

Rules are judged on records and memberships as they are now. A record that the reader may hold has
left the reader's view by the first change since the reader's position that took it out, be it one
of the record or of a membership: so each is judged with all that followed it until now. What this
finds to be in view now is a creation, what was in view by anything that has changed since is a
hidden deletion. Where more than 1,000 records are concerned, the reader lists again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db, rules
from app.collections.definitions import Definition
from app.db import filters
from app.errors import AnswerTooLarge
from app.realtime.feed import changes, dependencies, states
from app.realtime.feed.dependencies import Dependency
from app.realtime.feed.rights import Reset
from app.realtime.feed.states import Transition
from app.realtime.feed.visibility import Event, Linked, View
from app.records import store
from app.records.store import NO_PARAMETERS, Row, reads, references
from app.rules.nodes import Inner, Junction, Literal, Membership, Node

MOST = 1000
"""The records that one change may concern: of more, the reader lists the collection again."""
MAX_BATCH = 5 * MOST
"""Records of one collection, for all changes that are read at once."""
MOST_VERDICTS = 20_000
"""Records, times the changes of memberships by which each of them is judged, for one reader."""
TRIES = 3
"""Memberships may change again while records are judged by them."""
ERASED = object()
"""Stands for the values of an erased record, of which none is known."""


class TooMany(Exception):
    """Raised where more is concerned than is reported one by one."""


class Outlook:
    """Changes that were read, and what has followed them until now."""

    def __init__(self, account_id: str, end: int, found: Sequence[Transition]) -> None:
        self._account_id, self._end = account_id, end
        self._found, self._later = Transitions(found), Transitions()
        self._ends: dict[str, int] = {}
        """Up to where later changes were read, by the table."""
        self._changed = {one.definition.table_name for one in found}
        self._resets: dict[Definition, Sequence[int]] = {}
        self._touches: dict[View, Sequence[Touch]] = {}
        self._windows: dict[View, Touches] = {}
        self._present: dict[object, Sequence[Row]] = {}
        self._hidden: dict[tuple[object, str], int] = {}
        """The changes by which records were reported as hidden, by the view's key and their ids."""
        self._left: dict[object, Mapping[int, Event | Reset]] = {}
        self.has_judged = False
        """Whether records were judged by memberships of other times, which costs the most."""

    def touches(self, view: View) -> Sequence[Touch]:
        """What was read that counts for the rule of a view, or did."""
        if view not in self._touches:
            self._touches[view] = [*self._found.touches(view)]
        return self._touches[view]

    def of(self, view: View) -> Sequence[Event | Reset]:
        """What the changes of other collections' records give the reader of a view, or take."""
        definition = view.definition
        read = dependencies.read_by(definition)
        if view.access.condition is None or self._changed.isdisjoint(read):
            return ()
        if definition not in self._resets:  # the same for all readers
            others = (one for other in read.values() for one in self._found.of(other))
            found = (one.change for one in others if dependencies.is_reset_by(definition, one))
            self._resets[definition] = [*found]
        resets, touches = self._resets[definition], self.touches(view)
        if not resets and all(one.is_exact for one in touches):
            try:
                return self._diff(view, Touches(touches)) if touches else ()
            except TooMany:
                pass
        first = min([*resets, *(one.change for one in touches)])
        return [Reset(first, definition.name)]

    def _diff(self, view: View, touches: Touches) -> list[Event | Reset]:
        """The records that come into view by these touches or leave it. Raises TooMany."""
        key = view.definition, touches.key
        if key not in self._present:
            candidates = _candidates(self._account_id, view.definition, touches)
            self._read_later([view.definition])  # after them: one of both has each change
            self._present[key] = candidates
        present = self._present[key]
        since = [*self._found.of(view.definition), *self._later.of(view.definition)]
        # With those that were tied when the reader had them, and have changed since.
        rows = [(row, None) for row in present] + [
            (one.before, one.change) for one in since if one.before is not None
        ]
        # Each at the first touch: whatever is read next has the later ones.
        caused = [
            (row, first.transition)
            for row, until in rows
            if (first := touches.first(row)) and (until is None or first.change <= until)
        ]
        if any(count > MOST for count in Counter(cause.change for _, cause in caused).values()):
            raise TooMany
        sources = [
            cause._replace(definition=view.definition, record_id=row["id"], before=None, after=row)
            for row, cause in caused
        ]
        linked = Linked(sources, [view])
        judged = [linked.of(row, view) for row, _ in caused]
        verdicts = self._verdicts(view, judged)
        made = {one.record_id: one.change for one in since if one.before is None}
        current = {id(row) for row in present}
        found, done = list[Event | Reset](), set[str]()
        for source, values, known in zip(sources, judged, verdicts, strict=True):
            if source.record_id in done:
                continue
            if id(source.after) in current and view.admits(values):
                done.add(source.record_id)
                # What was made later comes with its own change.
                if made.get(source.record_id, 0) <= source.change and False in known:
                    found.append(Event(source, "create", source.after))
            elif True in known:
                done.add(source.record_id)
                self._hidden[view.key, source.record_id] = source.change
                found.append(Event(source, "delete", hidden=True))
        return found

    def event(self, view: View, transition: Transition, linked: Linked) -> Event | Reset | None:
        """A change of a record as the reader of a view may know it; None for no event.

        What is in view neither before nor after it was in view if a membership showed it that has
        changed since.
        """
        event = view.event(transition, linked)
        if event is not None or transition.before is None or not view.dependencies:
            return event
        if view.key not in self._left:
            self._left[view.key] = self._find_left(view, linked)
        return self._left[view.key].get(transition.change)

    def _find_left(self, view: View, linked: Linked) -> Mapping[int, Event | Reset]:
        """What changes of records that are not in view mean to who may have them, by the change.

        Hidden deletions, or a reset where that takes too long: the reader lists after all of them.
        """
        unseen = [
            (one, linked.of(one.before, view))
            for one in self._found.of(view.definition)
            if one.before is not None
            and one.change <= self._hidden.get((view.key, one.record_id), one.change)
            and view.event(one, linked) is None
        ]
        try:
            unseen = [one for one in unseen if self._window(view).first(one[1])]
            verdicts = self._verdicts(view, [values for _, values in unseen])
        except TooMany:
            last = unseen[-1][0].change
            return {last: Reset(last, view.definition.name)}
        return {
            one.change: Event(one, "delete", hidden=True)
            for (one, _), known in zip(unseen, verdicts, strict=True)
            if True in known
        }

    def _verdicts(self, view: View, rows: Sequence[Row]) -> Sequence[AbstractSet[bool]]:
        """Whether each record was in view: all that was true since what was read began, until now.

        Raises TooMany.
        """
        if not rows:
            return ()
        self.has_judged = True
        for _ in range(TRIES):
            window = self._window(view)
            if sum(map(window.count, rows)) > MOST_VERDICTS:
                raise TooMany
            touches = [window.of(row) for row in rows]
            others = _others(view, rows, touches)
            if not self._read_later(view.watched.values()):  # else `others` may have touched ones
                return [
                    {view.admits({**row, **answers}) for answers in _answers(row, own, rest)}
                    for row, own, rest in zip(rows, touches, others, strict=True)
                ]
        raise TooMany

    def _window(self, view: View) -> Touches:
        """What counted for a rule since what was read began. Raises TooMany."""
        if view not in self._windows:
            self._read_later(one for name, one in view.watched.items() if name not in self._ends)
            found = [*self.touches(view), *self._later.touches(view)]
            self._windows[view] = Touches(one for one in found if one.is_exact)
        return self._windows[view]

    def _read_later(self, of: Iterable[Definition]) -> bool:
        """Read what has followed in these collections; whether there was more. Raises TooMany."""
        has_more = False
        for one in of:
            after = self._ends.get(one.table_name, self._end)
            tables = {span.table_name for span in one.spans}
            rows = changes.later(self._account_id, after, tables, MOST)
            if rows is None:
                raise TooMany
            self._ends[one.table_name] = rows[-1].change if rows else after
            if rows:
                self._later.add(states.transitions(self._account_id, rows, [one]))
                self._windows.clear()
                has_more = True
        return has_more


def _candidates(account_id: str, definition: Definition, touches: Touches) -> Sequence[Row]:
    """The records that touches may concern now. Raises TooMany."""
    table, where = definition.table, store.scope(definition, account_id)
    most = MAX_BATCH
    if touches.untied:
        most = min(most, MOST_VERDICTS // len(touches.untied))
    else:
        tied = list[sa.ColumnElement[bool]]()
        for field, by_value in touches.tied.items():
            texts = [value for value in by_value if isinstance(value, str)]
            others = [value for value in by_value if not isinstance(value, str)]
            tied += [filters.is_any_of(table.c[field], texts)] if texts else []
            tied += [table.c[field].in_(others)] if others else []
        if not tied:
            return ()
        where = [*where, sa.or_(*tied)]
    ids = db.connection().scalars(sa.select(table.c.id).where(*where).limit(most + 1)).all()
    if len(ids) > most:
        raise TooMany
    own = [*store.scope(definition, account_id), filters.is_any_of(table.c.id, ids)]
    try:  # a page has all that comes of one change, or nothing
        reads.check_room(definition, own)
    except AnswerTooLarge:
        raise TooMany from None
    query = sa.select(*definition.selected).where(*own)
    return store.rows(definition, db.connection().execute(query))


def _others(
    view: View, rows: Sequence[Row], touches: Sequence[Sequence[Touch]]
) -> Sequence[Mapping[Dependency, int]]:
    """What the rule's subqueries find for each record, without those that were touched."""
    ids: dict[Dependency, dict[str, None]] = {}
    for touch in (one for own in touches for one in own):
        ids.setdefault(touch.dependency, {})[touch.transition.record_id] = None
    found = [dict.fromkeys(ids, 0) for _ in rows]
    for dependency, touched in ids.items():
        part = dependency.part
        # Where nothing is found at all, there are no others.
        places = [place for place, row in enumerate(rows) if dict[Any, Any](row)[part]]
        if not places:
            continue
        node = Inner(0, 0, ("id",), 1, part.collection, type=rules.Type.TEXT)
        listed = tuple(Literal(0, 0, id, type=rules.Type.TEXT) for id in touched)
        untouched = Membership(0, 0, node, listed, negated=True, type=rules.Type.BOOLEAN)
        whole: tuple[Node, ...] = (part.condition, untouched)
        both = Junction(0, 0, "and", whole, type=rules.Type.BOOLEAN)
        others, asked = replace(part, condition=both), [rows[place] for place in places]
        bodies = [NO_PARAMETERS] * len(asked)
        answered = references.answers(view.definition, asked, [others], view.access.subject, bodies)
        for place, values in zip(places, answered, strict=True):
            found[place][dependency] = int(dict[Any, Any](values)[others])
    return found


def _answers(
    row: Row, touches: Sequence[Touch], others: Mapping[Dependency, int]
) -> Iterator[Mapping[Any, object]]:
    """What the rule's subqueries found for a record before these touches, and after each of them.

    Each answer once; for `@any`, `others` is 0 or 1.
    """
    matching = {one.key: one.dependency.matches(one.before, row) for one in reversed(touches)}
    counts = dict(others)
    for (dependency, _), matches in matching.items():
        counts[dependency] += matches
    known = set[tuple[int, ...]]()
    for touch in (None, *touches):
        if touch is not None:
            matches = touch.dependency.matches(touch.after, row)
            counts[touch.dependency] += matches - matching[touch.key]
            matching[touch.key] = matches
        answers = tuple(
            min(count, 1) if one.part.function == "any" else count for one, count in counts.items()
        )
        if answers not in known:
            known.add(answers)
            yield {
                one.part: bool(count) if one.part.function == "any" else count
                for one, count in zip(counts, answers, strict=True)
            }


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
