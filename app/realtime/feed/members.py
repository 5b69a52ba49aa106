"""What a change of other records gives a reader of a collection, or takes: exactly, by `@any`.

Rules are judged on records and memberships as they are now. A record that the reader may hold has
left the reader's view by the first change since the reader's position that took it out, be it one
of the record or of a membership: so each is judged with all that followed it until now. What this
finds to be in view now is a creation, what was in view by anything that has changed since is a
hidden deletion. Where more than 1,000 records are concerned, the reader lists again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db, rules
from app.collections.definitions import Definition
from app.db import filters
from app.realtime.feed import changes, dependencies, states
from app.realtime.feed.dependencies import Dependency
from app.realtime.feed.rights import Reset
from app.realtime.feed.states import Transition
from app.realtime.feed.visibility import Event, Linked, View
from app.records import store
from app.records.store import Row, references
from app.rules.nodes import Inner, Junction, Literal, Membership, Node

MOST = 1000
"""The records that one change may concern: of more, the reader lists the collection again."""
MAX_BATCH = 5 * MOST
"""Records of one collection, for all changes that are read at once."""
MAX_GUESSES = 64


class Touch(NamedTuple):
    """A changed record that counted for a reader, or counts now."""

    dependency: Dependency
    transition: Transition
    before: Row | None
    after: Row | None


class Outlook:
    """Changes that were read, and what has followed them until now."""

    def __init__(self, account_id: str, end: int, found: Sequence[Transition]) -> None:
        self._account_id, self._end, self._found = account_id, end, found
        self._windows: dict[View, Sequence[Touch]] = {}
        self._later: dict[str, Sequence[Transition]] = {}
        self._reset = set[View]()
        self._hidden = set[tuple[object, str]]()
        self._changed = {one.definition.table_name for one in found}

    def of(self, view: View) -> Iterator[Event | Reset]:
        """What the changes of other collections' records give the reader of a view, or take."""
        if self._changed.isdisjoint(dependencies.read_by(view.definition)):
            return
        name = view.definition.name
        found = [one for one in self._found if dependencies.is_reset_by(view.definition, one)]
        touches, lasting = list[Touch](), [one.change for one in found]
        for touch in _touches(view, self._found):
            if touch.dependency.is_exact and not touch.transition.is_erased:
                touches.append(touch)
            else:
                lasting.append(touch.transition.change)
        exact = [one.transition.change for one in touches]
        if view.access.condition is not None and lasting:
            yield Reset(min(lasting + exact), name)
        elif touches:
            try:
                yield from self._diff(view, touches)
            except TooMany:
                yield Reset(min(exact), name)

    def event(self, view: View, transition: Transition, linked: Linked) -> Event | Reset | None:
        """A change of a record as the reader of a view may know it; None if it is not told of it.

        What is in view neither before nor after it was in view if a membership showed it that has
        changed since.
        """
        event, before = view.event(transition, linked), transition.before
        if event is not None or before is None or not view.dependencies:
            return event
        try:
            is_told = (view.key, transition.record_id) in self._hidden
            if not is_told and self._shown_before(view, linked.of(before, view)):
                return Event(transition, "delete", hidden=True)
        except TooMany:
            if view not in self._reset:  # once: the reader lists after all that was read
                self._reset.add(view)
                return Reset(transition.change, view.definition.name)
        return None

    def _shown_before(self, view: View, judged: Row) -> bool:
        """Whether a record was in view by a membership that has changed since. Raises TooMany."""
        if view not in self._windows:
            later = self._memberships_since(view)
            self._windows[view] = [*_touches(view, self._found), *_touches(view, later)]
        window = self._windows[view]
        return bool(window) and _is_possible(view, judged, window)

    def _memberships_since(self, view: View) -> Iterator[Transition]:
        missing = {name: one for name, one in view.watched.items() if name not in self._later}
        if missing:
            found = self._read_later(missing.values())
            for name, one in missing.items():
                self._later[name] = [t for t in found if t.definition is one]
        for name in view.watched:
            yield from self._later[name]

    def _read_later(self, of: Iterable[Definition]) -> Sequence[Transition]:
        tables = {span.table_name for one in of for span in one.spans}
        rows = changes.later(self._account_id, self._end, tables, MOST + 1)
        if len(rows) > MOST:
            raise TooMany
        return states.transitions(self._account_id, rows, of)

    def _diff(self, view: View, touches: Sequence[Touch]) -> Iterator[Event]:
        """The records that come into view or leave it by these changes. Raises TooMany."""
        present = _candidates(self._account_id, view.definition, touches)
        # Those that were tied when the reader had them, and have changed since.
        since = [one for one in self._found if one.definition is view.definition]
        since += self._read_later([view.definition])
        former = [one for one in since if one.before and any(_tied(one.before, touches, one))]
        rows = [*present, *(one.before for one in former if one.before)]
        causes = [max(_tied(row, touches), key=lambda one: one.change) for row in rows]
        counts = Counter(
            change for _, change in {(r["id"], c.change) for r, c in zip(rows, causes, strict=True)}
        )
        if any(count > MOST for count in counts.values()):
            raise TooMany
        sources = [
            cause._replace(definition=view.definition, record_id=row["id"], before=None, after=row)
            for row, cause in zip(rows, causes, strict=True)
        ]
        linked = Linked(sources, [view])
        judged = [linked.of(row, view) for row in rows]
        done = set[str]()
        before = _without(view, judged, touches)
        for place, (source, values, others) in enumerate(zip(sources, judged, before, strict=True)):
            id = source.record_id
            if id in done:
                continue
            was_in_view = view.admits({**values, **others})
            if place < len(present) and view.admits(values):
                done.add(id)
                if not was_in_view:
                    yield Event(source, "create", source.after)
            elif was_in_view or self._shown_before(view, values):
                done.add(id)
                self._hidden.add((view.key, id))
                yield Event(source, "delete", hidden=True)


class TooMany(Exception):
    """Raised where more is concerned than is told one by one."""


def _touches(view: View, found: Iterable[Transition]) -> Iterator[Touch]:
    for one in found:
        for dependency in view.dependencies:
            if dependency.definition.table_name == one.definition.table_name:
                if one.is_erased:
                    yield Touch(dependency, one, None, None)
                elif counts := dependency.concerned(one):
                    yield Touch(dependency, one, *counts)


def _candidates(account_id: str, definition: Definition, touches: Sequence[Touch]) -> Sequence[Row]:
    """The records that changed memberships may concern."""
    changed = len({one.transition.change for one in touches})
    most = min(MOST * changed, MAX_BATCH)
    where = store.scope(definition, account_id)
    if all(one.dependency.tie for one in touches):
        wanted: dict[str, set[Any]] = {}
        for one in touches:
            inner, outer = one.dependency.tie or ("", "")
            values = {row[inner] for row in (one.before, one.after) if row}
            wanted.setdefault(outer, set()).update(values - {None})
        tied = [
            filters.is_any_of(definition.table.c[outer], sorted(values))
            for outer, values in wanted.items()
            if values
        ]
        if not tied:
            return []
        where = [*where, sa.or_(*tied)]
    query = sa.select(*definition.selected).where(*where).limit(most + 1)
    rows = store.rows(definition, db.connection().execute(query))
    if len(rows) > most:
        raise TooMany
    return rows


def _tied(
    row: Row, touches: Sequence[Touch], since: Transition | None = None
) -> Iterator[Transition]:
    """The changes that may concern a record, or those before its own change."""
    for one in touches:
        inner, outer = one.dependency.tie or ("", "")
        if since is not None and since.change < one.transition.change:
            continue
        if not outer or any(row[outer] == known[inner] for known in one[2:] if known):
            yield one.transition


def _without(
    view: View, judged: Sequence[Row], touches: Sequence[Touch]
) -> list[dict[Any, object]]:
    """What the subqueries found for each record before these changes."""
    found: list[dict[Any, object]] = [{} for _ in judged]
    by_dependency: dict[Dependency, list[Touch]] = {}
    for touch in touches:
        by_dependency.setdefault(touch.dependency, []).append(touch)
    for dependency, own in by_dependency.items():
        part = dependency.part
        ids = dict.fromkeys(one.transition.record_id for one in own)
        first = {one.transition.record_id: one.before for one in reversed(own)}
        node = Inner(0, 0, ("id",), 1, part.collection, type=rules.Type.TEXT)
        listed = tuple(Literal(0, 0, id, type=rules.Type.TEXT) for id in ids)
        rest = Membership(0, 0, node, listed, negated=True, type=rules.Type.BOOLEAN)
        whole: tuple[Node, ...] = (part.condition, rest)
        both = Junction(0, 0, "and", whole, type=rules.Type.BOOLEAN)
        others = replace(part, condition=both)
        answered = references.answers(
            view.definition, judged, [others], view.access.subject, [{}] * len(judged)
        )
        for values, row, answers in zip(judged, found, answered, strict=True):
            matching = sum(dependency.matches(one, values) for one in first.values())
            rest_found: Any = dict[Any, Any](answers)[others]
            row[part] = (
                rest_found + matching if part.function == "count" else bool(rest_found or matching)
            )
    return found


def _is_possible(view: View, judged: Row, window: Sequence[Touch]) -> bool:
    """Whether a record was in view with memberships as they were at any time of the window."""
    answers: Any = judged
    most, least = dict[Any, int](), dict[Any, int]()
    for touch in window:
        part = touch.dependency.part
        if not touch.dependency.is_exact:
            continue  # a reset tells of it
        most[part] = most.get(part, 0) + touch.dependency.matches(touch.before, judged)
        least[part] = least.get(part, 0) + touch.dependency.matches(touch.after, judged)
    options = list[list[tuple[Any, object]]]()
    for part, more in most.items():
        if part.function == "any":
            known = {bool(answers[part])} | ({True} if more else set())
            known |= {False} if least[part] else set()
        else:
            known = {*range(max(answers[part] - least[part], 0), answers[part] + more + 1)}
        options.append([(part, value) for value in known])
    guesses = islice(product(*options), MAX_GUESSES)
    return any(view.admits({**judged, **dict(guess)}) for guess in guesses)
