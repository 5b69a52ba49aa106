"""A file's records on their way into a collection: created in pieces, all faults told at once.

What is at fault is left out and the rest is stored all the same, so that rules and unique fields
are asked of every record; the end of it, where there were faults, rolls everything back.

SQLite has one writer at a time, and nobody may keep the others waiting for long. There a file of
several pieces is checked first, each piece in a transaction that is rolled back, and then stored,
each piece in a transaction of its own (docs/architecture.md).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy.exc import DBAPIError

from app import db
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import masking
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.db import versioned_cache
from app.db.errors import error_summary
from app.errors import (
    MAX_LISTED,
    AppError,
    BadRequest,
    Conflict,
    Forbidden,
    InvalidValues,
    Malformed,
    problem,
)
from app.records import service, store
from app.records.read.views import RecordView
from app.records.store import reads, writes
from app.records.transfer.formats import Line
from app.records.write import changes
from app.records.write.changes import Change
from app.records.write.conflicts import TAKEN, WriteRefused
from app.records.write.values import ProblemList, Problems
from app.types import JSONObject

PIECE = 500
MOST_VALUES = 3000
"""Of records that SQLite stores in one transaction: the log has an entry for each of them."""
RERUNS = 3
MOST_SHOWN = 5
MASK = "This is what you see masked, not the value itself. Have it exported by who sees it."
DENIED = {"rule_denied", "field_denied"}

Body = JSONObject
Placed = tuple[int, Body]
"""A record of the file with its place among them, from 0."""


class ImportProblems:
    """What is wrong with a file: the first of it, and how much in all."""

    def __init__(self) -> None:
        self.malformed: list[Any] = []
        self.found: list[JSONObject] = []
        self.kinds: set[str] = set()
        self.count = 0

    def misread(self, error: Malformed) -> None:
        """A line that is no record."""
        self.malformed += error.extra["detail"][: MAX_LISTED - len(self.malformed)]

    def note(self, noted: ProblemList, lines: Sequence[int]) -> None:
        """Problems of records, which name their place among all."""
        self.count += noted.count
        self.kinds |= noted.codes
        first = noted.first()[: MAX_LISTED - len(self.found)]
        self.found += [{**one, "line": lines[one["index"]]} for one in first]

    def check(self) -> None:
        """Raise what tells of them."""
        if self.malformed:
            raise Malformed(self.malformed)
        if not self.found:
            return
        told: JSONObject = {"details": self.found, "count": self.count}
        if self.kinds <= DENIED:
            message = "The collection's rules do not allow all of this."
            raise Forbidden(message, error=max(self.kinds), **told)
        if self.kinds <= {"not_unique", *DENIED}:
            raise Conflict(TAKEN, field=self.found[0]["field"], **told)
        raise BadRequest(InvalidValues.message, error=InvalidValues.error, **told)


class Interrupted(Conflict):
    """An import that ended in the middle."""

    error = "import_interrupted"
    is_final = True

    def __init__(self, stored: int, count: int, cause: Exception) -> None:
        why = (
            "Others changed what it relies on." if isinstance(cause, versioned_cache.Stale) else ""
        )
        why = why or (cause.message if isinstance(cause, AppError) else f"{error_summary(cause)}.")
        super().__init__(
            f"The first {stored:,} of {count:,} records are stored, the others are not: {why}"
            " Import the others.",
            imported=stored,
            count=count,
        )


class Import:
    """One file on its way into a collection. Raises Malformed for lines that are no records."""

    def __init__(
        self, definition: Definition, by: Principal, lines: Sequence[Line], *, keep_ids: bool
    ) -> None:
        self.definition, self.by, self.keep_ids = definition, by, keep_ids
        self.faults = ImportProblems()
        self.lines: list[int] = []
        self.untied: dict[int, Body] = {}
        self.taken: set[tuple[object, ...]] = set()
        """Values of unique fields that records have which are checked and not stored."""
        self.first: list[RecordView] = []
        """The first records, as the caller may view them."""
        self.records = list(self._placed(lines))
        self.faults.check()

    @property
    def is_short(self) -> bool:
        """Whether one transaction keeps nobody waiting for long; superadmins may take their time.

        Records that come with their ids may refer to each other, so they are stored together.
        """
        fits = len(self.records) <= self._rows_at_once()
        return fits or self.keep_ids or not db.has_one_writer()

    def in_one_transaction(self, *, dry_run: bool) -> Iterator[int]:
        """Create all of them; yields after each piece how many it has seen.

        Raises what `Faults.check` says, and Stale.
        """
        limits = db.without_time_limit() if self.keep_ids else nullcontext()
        with suppress(_Undone), limits, self._writing():
            placed: Iterator[Placed] = iter(self.records)
            if self.keep_ids:
                ids = {body["id"] for _, body in self.records if _is_id(body.get("id"))}
                placed = (self._untie(one, ids) for one in self.records)
            loose: dict[str, Body] = {}
            while piece := list(islice(placed, PIECE)):
                loose |= self._create(piece)
                yield piece[-1][0] + 1
            self.faults.check()
            self._tie(loose)
            if dry_run:
                raise _Undone

    def in_pieces(self, *, dry_run: bool) -> Iterator[int]:
        """Check all of them, then store them in short transactions; yields as the other does.

        Raises what `Faults.check` says, and Stale; once something is stored, Interrupted.
        """
        for piece in self._pieces():
            with suppress(_Undone), self._writing():
                self._create(piece, is_check=True)
                raise _Undone
            yield piece[-1][0] + 1
        self.faults.check()
        if not dry_run:
            self.first.clear()
            for piece in self._pieces():
                self._store(piece)

    def _pieces(self) -> Iterator[list[Placed]]:
        left = iter(self.records)
        while piece := list(islice(left, self._rows_at_once())):
            yield piece

    def _rows_at_once(self) -> int:
        return max(1, min(PIECE, MOST_VALUES // len(self.definition.columns)))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with service.transaction(self.definition.name, self.by) as self.definition:
            yield

    def _store(self, piece: Sequence[Placed]) -> None:
        stored = piece[0][0]
        if not stored:
            self._store_once(piece)
            return
        for tries_left in reversed(range(RERUNS)):
            try:
                # What has begun is brought to its end; each piece is small enough.
                with versioned_cache.reloading(), db.without_time_limit():
                    self._store_once(piece)
                return
            except (versioned_cache.Stale, AppError, DBAPIError) as error:
                if not tries_left or not isinstance(error, versioned_cache.Stale):
                    raise Interrupted(stored, len(self.records), error) from error

    def _store_once(self, piece: Sequence[Placed]) -> None:
        with self._writing():
            self._create(piece)
            self.faults.check()

    def _placed(self, lines: Sequence[Line]) -> Iterator[Placed]:
        for line, item in lines:
            if isinstance(item, dict):
                self.lines.append(line)
                yield len(self.lines) - 1, item
            elif isinstance(item, Malformed):
                self.faults.misread(item)
            else:
                msg = "Must be a JSON object."
                self.faults.misread(Malformed.at("body", line, msg=msg, type="type"))

    def _create(self, piece: Sequence[Placed], *, is_check: bool = False) -> dict[str, Body]:
        """Create what has no fault; returns the references left out, by the ids of the records."""
        problems = Problems([place for place, _ in piece])
        # An export has them; they are the service's to set.
        bodies = [{n: v for n, v in one.items() if n not in SYSTEM_FIELDS} for _, one in piece]
        loose: dict[str, Body] = {}
        self._check_masks(bodies, problems)
        try:
            change = changes.prepare_create(self.definition, bodies, problems, self.by)
            if self.keep_ids:
                change = self._with_ids(change, [one.get("id") for _, one in piece])
            change = changes.valid_part(change)
            changes.add_conflicts(change)
            if is_check:
                changes.add_duplicates(change, self.taken)
            change = changes.valid_part(change)
            loose = self._loose(change)
            if change.values:
                made = changes.store_change(change)
                self.first += made[: MOST_SHOWN - len(self.first)]
        except Forbidden as error:
            if "details" not in error.extra:
                raise
            told = error.extra["details"]
            problems.collected.add(told, more=error.extra.get("count", len(told)) - len(told))
        except WriteRefused:
            raise versioned_cache.Stale from None  # a concurrent change; the retry says which
        self.faults.note(problems.collected, self.lines)
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
        scoped = store.scope(self.definition, self.by.require_account_id())
        taken = reads.existing_ids(self.definition, scoped, filter(_is_id, given))
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
        placed = zip(change.problems.indexes or (), change.values, strict=True)
        return {row["id"]: self.untied[place] for place, row in placed if place in self.untied}

    def _tie(self, loose: Mapping[str, Body]) -> None:
        access = accesses.for_operation(self.by, self.definition, "update") if loose else None
        scoped = store.scope(self.definition, self.by.account_id)
        ids = iter(loose)
        while access and (piece := list(islice(ids, PIECE))):
            rows = writes.lock(self.definition, scoped, piece)
            ordered, bodies = [rows[id] for id in piece], [loose[id] for id in piece]
            problems = Problems()
            change = changes.prepare_update(access, ordered, bodies, problems)
            problems.check()
            changes.store_change(change)


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


class _Undone(Exception):
    """The end of a dry run."""
