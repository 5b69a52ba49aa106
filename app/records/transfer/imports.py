"""Imports the records of a file in batches, and reports all problems together.

Invalid records are skipped and the rest is inserted, so that rules and unique fields are checked
for all of them; if there were problems, the transaction is rolled back.

SQLite has a single writer, which must not block others for long. There a file of several batches is
first checked, each batch in a transaction that is rolled back, and then stored, each batch in a
transaction of its own (docs/architecture.md).
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
from app.collections import masking, people, sequences
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE, SYSTEM_FIELDS, InvalidValue
from app.collections.fields.file import files_in
from app.context import actor, deadline
from app.context.actor import ActorKind
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
from app.files.ownership import UNKNOWN
from app.ids import new_id
from app.records import service, store
from app.records.read.views import RecordView
from app.records.store import reads, writes
from app.records.transfer.formats import Line
from app.records.write import changes
from app.records.write.changes import TAKEN, Change, WriteRefused
from app.records.write.values import ProblemList, Problems
from app.types import JSONObject

BATCH_SIZE = 500
MAX_VALUES = 3000
"""Values per transaction on SQLite; each has an audit entry."""
MAX_RERUNS = 3
MAX_RETURNED = 5
MASK = "This value is masked. Ask someone who sees it unmasked to export the data."
DENIED = {"rule_denied", "field_denied"}

Body = JSONObject
Placed = tuple[int, Body]
"""A record with its index in the file."""


class ImportProblems:
    """The first problems of a file, and their number."""

    def __init__(self) -> None:
        self.malformed: list[Any] = []
        self.found: list[JSONObject] = []
        self.kinds: set[str] = set()
        self.count = 0

    def add_malformed(self, error: Malformed) -> None:
        """Add a line that is not a record."""
        self.malformed += error.extra["detail"][: MAX_LISTED - len(self.malformed)]

    def add(self, problems: ProblemList, lines: Sequence[int]) -> None:
        """Add problems of records, identified by index."""
        self.count += problems.count
        self.kinds |= problems.codes
        first = problems.first()[: MAX_LISTED - len(self.found)]
        self.found += [{**detail, "line": lines[detail["index"]]} for detail in first]

    def check(self) -> None:
        """Raise the problems, if any."""
        if self.malformed:
            raise Malformed(self.malformed)
        if not self.found:
            return
        details: JSONObject = {"details": self.found, "count": self.count}
        if self.kinds <= DENIED:
            message = "The collection's rules do not allow all of this."
            raise Forbidden(message, error=max(self.kinds), **details)
        if self.kinds <= {"not_unique", *DENIED}:
            raise Conflict(TAKEN, field=self.found[0]["field"], **details)
        raise BadRequest(InvalidValues.message, error=InvalidValues.error, **details)


class Interrupted(Conflict):
    """An import that stopped after some batches."""

    error = "import_interrupted"
    is_final = True

    def __init__(self, stored: int, count: int, cause: Exception) -> None:
        if isinstance(cause, versioned_cache.Stale):
            reason = "It conflicts with a concurrent change."
        else:
            reason = cause.message if isinstance(cause, AppError) else f"{error_summary(cause)}."
        super().__init__(
            f"The first {stored:,} of {count:,} records are stored, the others are not: {reason}"
            " Import the others.",
            imported=stored,
            count=count,
        )


class Import:
    """An import of one file. Raises Malformed for lines that are not records."""

    def __init__(
        self, definition: Definition, by: Principal, lines: Sequence[Line], *, keep_ids: bool
    ) -> None:
        self.definition, self.by, self.keep_ids = definition, by, keep_ids
        self.id = new_id()
        self.faults = ImportProblems()
        self.lines: list[int] = []
        self.detached: dict[int, Body] = {}
        self.taken: set[tuple[object, ...]] = set()
        """Values of unique fields of records that were checked but not stored."""
        self.taken_files: set[str] = set()
        """The ids of their files."""
        self.first: list[RecordView] = []
        """The first records, as the caller may view them."""
        self.records: list[Placed] = []
        for line, item in lines:
            if isinstance(item, dict):
                if isinstance(item.get("id"), str):
                    item["id"] = item["id"].lower()
                self.records.append((len(self.lines), item))
                self.lines.append(line)
            elif isinstance(item, Malformed):
                self.faults.add_malformed(item)
            else:
                msg = "Must be a JSON object."
                self.faults.add_malformed(Malformed.at("body", line, msg=msg, type="type"))
        self.faults.check()

    @property
    def is_short(self) -> bool:
        """Whether one transaction is short enough not to block others.

        Superadmins' imports with ids always take one, as the records may refer to each other.
        """
        fits = len(self.records) <= self._batch_size()
        return fits or self.keep_ids or not db.has_one_writer()

    def in_one_transaction(self, *, dry_run: bool) -> Iterator[int]:
        """Create all records; yields the number of processed records after each batch.

        Raises like `ImportProblems.check`, and Stale.
        """
        limits = deadline.within(None) if self.keep_ids else nullcontext()
        with suppress(_Rollback), limits, self._transaction():
            records: Iterator[Placed] = iter(self.records)
            if self.keep_ids:
                ids = {body["id"] for _, body in self.records if _is_id(body.get("id"))}
                records = (self._detach_references(record, ids) for record in self.records)
            left_out: dict[str, Body] = {}
            while batch := list(islice(records, BATCH_SIZE)):
                left_out |= self._create(batch)
                yield batch[-1][0] + 1
            self.faults.check()
            self._attach_references(left_out)
            if dry_run:
                raise _Rollback

    def in_pieces(self, *, dry_run: bool) -> Iterator[int]:
        """Check all records, then store them in short transactions; yields like the other.

        Raises like `ImportProblems.check`, and Stale; once something is stored, Interrupted.
        """
        for batch in self._pieces():
            with suppress(_Rollback), self._transaction():
                self._create(batch, is_check=True)
                raise _Rollback
            yield batch[-1][0] + 1
        self.faults.check()
        if not dry_run:
            self.first.clear()
            for batch in self._pieces():
                self._store(batch)

    def _store(self, batch: Sequence[Placed]) -> None:
        """Store a batch; once there are others, it is tried again or raises Interrupted."""
        stored = batch[0][0]
        for tries_left in reversed(range(MAX_RERUNS)):
            try:
                with versioned_cache.reloading() if stored else nullcontext(), self._transaction():
                    self._create(batch)
                    self.faults.check()
                return
            except (versioned_cache.Stale, AppError, DBAPIError) as error:
                if not stored:
                    raise
                if not tries_left or not isinstance(error, versioned_cache.Stale):
                    raise Interrupted(stored, len(self.records), error) from error

    def _pieces(self) -> Iterator[list[Placed]]:
        remaining = iter(self.records)
        while batch := list(islice(remaining, self._batch_size())):
            yield batch

    def _batch_size(self) -> int:
        return max(1, min(BATCH_SIZE, MAX_VALUES // len(self.definition.columns)))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        name = self.definition.name
        acting = actor.acting_for(ActorKind.IMPORT, self.id, name)
        with acting, service.transaction(name, self.by) as self.definition:
            yield

    def _create(self, batch: Sequence[Placed], *, is_check: bool = False) -> dict[str, Body]:
        """Create the valid records; returns the detached references by record id."""
        problems = Problems([index for index, _ in batch])
        # Exports contain system and computed fields, which only the service sets.
        unset = SYSTEM_FIELDS.keys() | self.definition.computed.keys()
        if not self.by.is_admin:
            unset |= self.definition.sequences.keys()
        bodies = [{n: v for n, v in body.items() if n not in unset} for _, body in batch]
        left_out: dict[str, Body] = {}
        self._resolve_addresses(bodies)
        self._check_masks(bodies, problems)
        self._write_numbers(bodies, problems)
        try:
            change = changes.prepare_create(
                self.definition, bodies, problems, self.by, has_numbers=True
            )
            if self.keep_ids:
                change = self._with_ids(change, [body.get("id") for _, body in batch])
            change = changes.valid_part(change)
            changes.add_conflicts(change)
            self._check_numbers(change)
            if is_check:
                changes.add_duplicates(change, self.taken)
                self._check_files(change)
            change = changes.valid_part(change)
            indexes = change.problems.indexes or ()
            left_out = {
                row["id"]: self.detached[index]
                for index, row in zip(indexes, change.values, strict=True)
                if index in self.detached
            }
            if change.values:
                views = changes.save(change)
                self.first += views[: MAX_RETURNED - len(self.first)]
        except Forbidden as error:
            if "details" not in error.extra:
                raise
            details = error.extra["details"]
            problems.collected.add(
                details, more=error.extra.get("count", len(details)) - len(details)
            )
        except WriteRefused:
            raise versioned_cache.Stale from None  # a concurrent change; the retry reports it
        self.faults.add(problems.collected, self.lines)
        return left_out

    def _check_files(self, change: Change) -> None:
        """Refuse files that records of earlier pieces take."""
        for index, row in enumerate(change.values):
            for name in self.definition.files:
                ids = {file["id"] for file in files_in(row.get(name))}
                if ids & self.taken_files:
                    change.problems.add(index, [problem(name, "file_unknown", UNKNOWN)])
                self.taken_files |= ids

    def _write_numbers(self, bodies: Sequence[Body], problems: Problems) -> None:
        """Write the numbers of `sequence` fields as the service does."""
        for name, field in self.definition.sequences.items():
            for index, body in enumerate(bodies):
                if body.get(name) is not None:
                    try:
                        body[name] = field.given(body[name])
                    except InvalidValue as error:
                        problems.add(index, [problem(name, error.code, str(error))])
                        del body[name]

    def _check_numbers(self, change: Change) -> None:
        """Refuse numbers that records have with another prefix, or other zeros."""
        for name, field in self.definition.sequences.items():
            taken = sequences.taken(self.definition, field, change.values)
            for index, row in enumerate(change.values if taken else ()):
                is_known = change.problems.has(index) or row[name] is None
                if not is_known and field.number(row[name]) in taken:
                    change.problems.add(index, [problem(name, "not_unique", TAKEN)])

    def _resolve_addresses(self, bodies: Sequence[Body]) -> None:
        """Replace the addresses of people by their ids, as far as the account has them."""
        names = [n for n, target in self.definition.references.items() if target == PEOPLE]
        given = [(body, n, body[n]) for body in bodies for n in names if body.get(n)]
        values = (one for _, _, value in given for one in _as_list(value))
        sent = {one for one in values if isinstance(one, str) and "@" in one}
        ids = people.by_address(self.by.require_account_id(), sent) if sent else {}
        for body, name, value in given if ids else ():
            found = [ids.get(one, one) if isinstance(one, str) else one for one in _as_list(value)]
            body[name] = found if isinstance(value, list) else found[0]

    def _check_masks(self, bodies: Sequence[Body], problems: Problems) -> None:
        """Refuse masks of an export, which would otherwise be stored as values."""
        fields = self.definition.fields.items()
        masked = {name: field for name, field in fields if accesses.sees_masked(self.by, field)}
        for index, body in enumerate(bodies if masked else ()):
            found = [
                problem(name, "invalid_option", MASK)
                for name, field in masked.items()
                if isinstance(body.get(name), str) and masking.is_mask(field, body[name])
            ]
            problems.add(index, found)

    def _with_ids(self, change: Change, ids: Sequence[Any]) -> Change:
        """Give the records the ids of the file; others than new UUIDs are problems."""
        scoped = store.scope(self.definition, self.by.require_account_id())
        existing = reads.existing_ids(self.definition, scoped, filter(_is_id, ids))
        values = []
        for index, (id, row) in enumerate(zip(ids, change.values, strict=True)):
            values.append(row if id is None else {**row, "id": id})
            if id is not None and not _is_id(id):
                message = "Must be a UUID."
                change.problems.add(index, [problem("id", "invalid_type", message)])
            elif id in existing:
                change.problems.add(index, [problem("id", "not_unique", TAKEN)])
            elif id is not None:
                existing.add(id)
        return replace(change, values=values, has_given_ids=True)

    def _detach_references(self, placed: Placed, ids: Collection[str]) -> Placed:
        """Detach the references to records of the same file, which are set at the end."""
        index, body = placed
        own_name = self.definition.name.lower()
        left_out = {
            name: body[name]
            for name, field in self.definition.fields.items()
            if (field.collection or "").lower() == own_name and not field.required
            if isinstance(body.get(name), str) and body[name].lower() in ids
        }
        if left_out:
            self.detached[index] = left_out
        return index, {**body, **dict.fromkeys(left_out)}

    def _attach_references(self, left_out: Mapping[str, Body]) -> None:
        """Set the references that were detached, now that all records are stored."""
        access = accesses.for_operation(self.by, self.definition, "update") if left_out else None
        scoped = store.scope(self.definition, self.by.account_id)
        ids = iter(left_out)
        while access and (batch := list(islice(ids, BATCH_SIZE))):
            rows = writes.lock(self.definition, scoped, batch)
            ordered, bodies = [rows[id] for id in batch], [left_out[id] for id in batch]
            problems = Problems()
            change = changes.prepare_update(access, ordered, bodies, problems)
            problems.check()
            changes.save(change)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


class _Rollback(Exception):
    """Rolls back a dry run."""
