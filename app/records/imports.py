"""A file's records on their way into a collection: created in pieces, all faults told at once.

What is at fault is left out and the rest is stored all the same, so that rules and unique fields
are asked of every record; the end of it, where there were faults, rolls everything back.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

from app import stamps
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import masking
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.errors import BadRequest, Conflict, Forbidden, InvalidValues, Malformed, problem
from app.records import changes, store
from app.records.changes import Change
from app.records.clashes import TAKEN, Clash
from app.records.formats import Line
from app.records.store import reads, writes
from app.records.values import Problems
from app.records.views import Shown

PIECE = 500
MOST_TOLD = 100
MOST_SHOWN = 5
MASK = "This is what you see masked, not the value itself. Have it exported by who sees it."
DENIED = {"rule_denied", "field_denied"}

Body = dict[str, Any]
Placed = tuple[int, Body]
"""A record of the file with its place among them, from 0."""


class Faults:
    """What is wrong with a file: the first of it, and how much in all."""

    def __init__(self) -> None:
        self.malformed: list[Any] = []
        self.found: list[dict[str, Any]] = []
        self.kinds: set[str] = set()
        self.count = 0

    def misread(self, error: Malformed) -> None:
        """A line that is no record."""
        self.malformed += error.extra["detail"][: MOST_TOLD - len(self.malformed)]

    def note(self, found: Sequence[Mapping[str, Any]], lines: Sequence[int]) -> None:
        """Problems of records, which name their place among all."""
        self.count += len(found)
        self.kinds |= {one["code"] for one in found}
        ordered = sorted(found, key=lambda one: one["index"])
        first = ordered[: MOST_TOLD - len(self.found)]
        self.found += [{**one, "line": lines[one["index"]]} for one in first]

    def check(self) -> None:
        """Raise what tells of them."""
        if self.malformed:
            raise Malformed(self.malformed)
        if not self.found:
            return
        told: dict[str, Any] = {"details": self.found, "count": self.count}
        if self.kinds <= DENIED:
            message = "The collection's rules do not allow all of this."
            raise Forbidden(message, error=max(self.kinds), **told)
        if self.kinds <= {"not_unique", *DENIED}:
            raise Conflict(TAKEN, field=self.found[0]["field"], **told)
        raise BadRequest(InvalidValues.message, error=InvalidValues.error, **told)


class Import:
    """One file on its way into a collection; inside `service.writing`."""

    def __init__(self, definition: Definition, by: Principal, *, keep_ids: bool) -> None:
        self.definition, self.by, self.keep_ids = definition, by, keep_ids
        self.faults = Faults()
        self.lines: list[int] = []
        self.untied: dict[int, Body] = {}
        self.first: list[Shown] = []
        """The first records, as the caller may view them."""

    def run(self, lines: Iterable[Line]) -> Iterator[int]:
        """Create all of them; yields after each piece how many it has seen.

        Raises what `Faults.check` says, and Stale.
        """
        placed = self._placed(lines)
        if self.keep_ids:
            placed = map(self._untie, *_with_all_ids(placed))
        loose: dict[str, Body] = {}
        while piece := list(islice(placed, PIECE)):
            loose |= self._create(piece)
            yield len(self.lines)
        self.faults.check()
        self._tie(loose)

    def _placed(self, lines: Iterable[Line]) -> Iterator[Placed]:
        for line, item in lines:
            if isinstance(item, dict):
                self.lines.append(line)
                yield len(self.lines) - 1, item
            elif isinstance(item, Malformed):
                self.faults.misread(item)
            else:
                msg = "Must be a JSON object."
                self.faults.misread(Malformed.at("body", line, msg=msg, type="type"))

    def _create(self, piece: Sequence[Placed]) -> dict[str, Body]:
        """Create what has no fault; returns the references left out, by the ids of the records."""
        problems = Problems([place for place, _ in piece])
        # An export has them; they are the service's to set.
        bodies = [{n: v for n, v in one.items() if n not in SYSTEM_FIELDS} for _, one in piece]
        loose: dict[str, Body] = {}
        self._check_masks(bodies, problems)
        try:
            change = changes.prepare_new(self.definition, bodies, problems, self.by)
            if self.keep_ids:
                change = self._with_ids(change, [one.get("id") for _, one in piece])
            change = changes.faultless(change)
            changes.note_clashes(change)
            change = changes.faultless(change)
            loose = self._loose(change)
            if change.values:
                made = changes.store_all(change)
                self.first += made[: MOST_SHOWN - len(self.first)]
        except Forbidden as error:
            if "details" not in error.extra:
                raise
            problems.found += error.extra["details"]
        except Clash:
            raise stamps.Stale from None  # somebody was faster: the next look tells with what
        self.faults.note(problems.found, self.lines)
        return loose

    def _check_masks(self, bodies: Sequence[Body], problems: Problems) -> None:
        """Refuse what an export showed masked: stored, it would pass for the value itself."""
        fields = self.definition.fields.items()
        masked = {name: one for name, one in fields if accesses.sees_masked(self.by, one)}
        for index, body in enumerate(bodies if masked else ()):
            found = [
                problem(name, "invalid_option", MASK)
                for name, field in masked.items()
                if isinstance(body.get(name), str) and masking.is_mask(field, body[name])
            ]
            problems.add(index, found)

    def _with_ids(self, change: Change, given: Sequence[Any]) -> Change:
        scoped = store.scope(self.definition, self.by.one_account())
        taken = reads.existing(self.definition, scoped, filter(_is_id, given))
        values = []
        for index, (id, row) in enumerate(zip(given, change.values, strict=True)):
            values.append(row if id is None else {**row, "id": id})
            if id is not None and not _is_id(id):
                message = "Must be a UUID in lower case."
                change.problems.add(index, [problem("id", "invalid_type", message)])
            elif id in taken:
                change.problems.add(index, [problem("id", "not_unique", TAKEN)])
            elif id is not None:
                taken.add(id)
        return replace(change, values=values)

    def _untie(self, placed: Placed, ids: Collection[str]) -> Placed:
        """The record without its references to records of the same file, which come to it later."""
        place, body = placed
        own = self.definition.name.lower()
        loose = {
            name: body[name]
            for name, one in self.definition.fields.items()
            if (one.collection or "").lower() == own and not one.required
            if isinstance(body.get(name), str) and body[name] in ids
        }
        if loose:
            self.untied[place] = loose
        return place, {**body, **dict.fromkeys(loose)}

    def _loose(self, change: Change) -> dict[str, Body]:
        placed = zip(change.problems.places or (), change.values, strict=True)
        return {row["id"]: self.untied[place] for place, row in placed if place in self.untied}

    def _tie(self, loose: Mapping[str, Body]) -> None:
        access = accesses.of(self.by, self.definition, "update") if loose else None
        scoped = store.scope(self.definition, self.by.account_id)
        ids = iter(loose)
        while access and (piece := list(islice(ids, PIECE))):
            rows = writes.lock(self.definition, scoped, piece)
            ordered, bodies = [rows[id] for id in piece], [loose[id] for id in piece]
            problems = Problems()
            change = changes.prepare_changes(access, ordered, bodies, problems)
            problems.check()
            changes.store_all(change)


def _with_all_ids(placed: Iterable[Placed]) -> tuple[list[Placed], Iterator[set[str]]]:
    known = list(placed)
    ids = {body["id"] for _, body in known if _is_id(body.get("id"))}
    return known, repeat(ids)


def _is_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False
