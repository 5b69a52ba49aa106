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
from dataclasses import replace
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
MOST_VERDICTS = 200_000


class Touch(NamedTuple):
    """A changed record that counted for a reader, or counts now."""

    dependency: Dependency
    transition: Transition
    before: Row | None
    after: Row | None

    @property
    def key(self) -> tuple[Dependency, str]:
        return self.dependency, self.transition.record_id

    @property
    def is_exact(self) -> bool:
        """Whether its effect is reported record by record; else the reader lists again."""
        return self.dependency.is_exact and not self.transition.is_erased


class Outlook:
    """Changes that were read, and what has followed them until now."""

    def __init__(self, account_id: str, end: int, found: Sequence[Transition]) -> None:
        self._account_id, self._end, self._found = account_id, end, found
        self._windows: dict[View, Sequence[Touch]] = {}
        self._later: dict[str, Sequence[Transition]] = {}
        self._reset = set[View]()
        self._hidden = dict[tuple[object, str], int]()
        self._changed = {one.definition.table_name for one in found}

    def of(self, view: View) -> Iterator[Event | Reset]:
        """What the changes of other collections' records give the reader of a view, or take."""
        if self._changed.isdisjoint(dependencies.read_by(view.definition)):
            return
        name = view.definition.name
        found = [one for one in self._found if dependencies.is_reset_by(view.definition, one)]
        touches, lasting = list[Touch](), [one.change for one in found]
        for touch in _touches(view, self._found):
            if touch.is_exact:
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
        """A change of a record as the reader of a view may know it; None for no event.

        What is in view neither before nor after it was in view if a membership showed it that has
        changed since.
        """
        event, before = view.event(transition, linked), transition.before
        if event is not None or before is None or not view.dependencies:
            return event
        try:
            hidden_at = self._hidden.get((view.key, transition.record_id), transition.change)
            window = self._window(view) if hidden_at >= transition.change else ()
            if window and any(_sometime(view, [linked.of(before, view)], window)[0]):
                return Event(transition, "delete", hidden=True)
        except TooMany:
            if view not in self._reset:  # once: the reader lists after all that was read
                self._reset.add(view)
                return Reset(transition.change, view.definition.name)
        return None

    def _window(self, view: View) -> Sequence[Touch]:
        """The changes of memberships since what was read began, until now. Raises TooMany."""
        if view not in self._windows:
            touches = [
                *_touches(view, self._found),
                *_touches(view, self._memberships_since(view)),
            ]
            self._windows[view] = [one for one in touches if one.is_exact]
        return self._windows[view]

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
        # At the first of them: whatever is read next has the later ones.
        causes = [min(_tied(row, touches), key=lambda one: one.change) for row in rows]
        if any(count > MOST for count in Counter(one.change for one in causes).values()):
            raise TooMany
        sources = [
            cause._replace(definition=view.definition, record_id=row["id"], before=None, after=row)
            for row, cause in zip(rows, causes, strict=True)
        ]
        linked = Linked(sources, [view])
        judged = [linked.of(row, view) for row in rows]
        verdicts = _sometime(view, judged, self._window(view))
        made = {one.record_id: one.change for one in since if one.before is None}
        done = set[str]()
        for place, (source, values) in enumerate(zip(sources, judged, strict=True)):
            if source.record_id in done:
                continue
            if place < len(present) and view.admits(values):
                done.add(source.record_id)
                # What was made later comes with its own change.
                is_older = made.get(source.record_id, 0) <= source.change
                if is_older and not all(verdicts[place]):
                    yield Event(source, "create", source.after)
            elif any(verdicts[place]):
                done.add(source.record_id)
                self._hidden[view.key, source.record_id] = source.change
                yield Event(source, "delete", hidden=True)


class TooMany(Exception):
    """Raised where more is concerned than is reported one by one."""


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
    found = sa.select(definition.table.c.id).where(*where).limit(most + 1)
    try:  # a page has all that comes of one change, or nothing
        reads.check_room(definition, [*where, definition.table.c.id.in_(found)])
    except AnswerTooLarge:
        raise TooMany from None
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


def _sometime(view: View, judged: Sequence[Row], window: Sequence[Touch]) -> list[Sequence[bool]]:
    """Whether each record was in view, by the memberships of each time of the window.

    Raises TooMany if that takes too long.
    """
    if len(judged) * len(window) > MOST_VERDICTS:
        raise TooMany
    answers = _untouched(view, judged, window)
    verdicts = list[Sequence[bool]]()
    for values, rest in zip(judged, answers, strict=True):
        matching: dict[tuple[Dependency, str], bool] = {}
        for one in reversed(window):
            matching[one.key] = one.dependency.matches(one.before, values)
        times = [_found(matching, rest)]
        for one in window:
            matching[one.key] = one.dependency.matches(one.after, values)
            times.append(_found(matching, rest))
        different = {tuple(time.items()): time for time in times}.values()
        verdicts.append([view.admits({**values, **time}) for time in different])
    return verdicts


def _found(
    matching: Mapping[tuple[Dependency, str], bool], rest: Mapping[Dependency, Any]
) -> dict[Any, object]:
    """What subqueries find where these touched records count, beside those that were not."""
    found: dict[Any, object] = {}
    for dependency, others in rest.items():
        count = sum(counts for (of, _), counts in matching.items() if of is dependency)
        is_any = dependency.part.function == "any"
        found[dependency.part] = bool(others or count) if is_any else others + count
    return found


def _untouched(
    view: View, judged: Sequence[Row], window: Sequence[Touch]
) -> list[dict[Dependency, Any]]:
    """What subqueries find for each record without those that were touched."""
    found: list[dict[Dependency, Any]] = [{} for _ in judged]
    ids: dict[Dependency, dict[str, None]] = {}
    for touch in window:
        ids.setdefault(touch.dependency, {})[touch.transition.record_id] = None
    for dependency, own in ids.items():
        part = dependency.part
        node = Inner(0, 0, ("id",), 1, part.collection, type=rules.Type.TEXT)
        listed = tuple(Literal(0, 0, id, type=rules.Type.TEXT) for id in own)
        rest = Membership(0, 0, node, listed, negated=True, type=rules.Type.BOOLEAN)
        whole: tuple[Node, ...] = (part.condition, rest)
        both = Junction(0, 0, "and", whole, type=rules.Type.BOOLEAN)
        others, bodies = replace(part, condition=both), [NO_PARAMETERS] * len(judged)
        answered = references.answers(
            view.definition, judged, [others], view.access.subject, bodies
        )
        for row, values in zip(found, answered, strict=True):
            row[dependency] = dict[Any, Any](values)[others]
    return found
