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
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sqlalchemy.exc import DBAPIError

from app import db
from app.audit import append, unchanged
from app.audit.unchanged import CREATION
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
from app.records import batch, service, store
from app.records.read.views import SYSTEM_COLUMNS, RecordView
from app.records.store import reads, writes
from app.records.transfer.formats import Line
from app.records.write import changes
from app.records.write.changes import TAKEN, Change, WriteRefused
from app.records.write.values import ProblemList, Problems
from app.types import JSONObject, cached_property

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


@dataclass(frozen=True)
class Options:
    """How a file is imported."""

    dry_run: bool = False
    """Whether everything is checked, and nothing stored."""
    keep_ids: bool = False
    upsert: str | None = None
    """The unique field whose values say which records are there already, and are updated."""


@dataclass
class Outcome:
    """What an import has done so far, or would do."""

    processed: int = 0
    """The number of records that are checked."""
    first: list[RecordView] = field(default_factory=list)
    """The first records, as the caller may view them."""
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    ignored: set[str] = field(default_factory=set)
    """The system fields whose values could not be taken."""

    def restart(self) -> None:
        """Forget what became of the records, which were only checked."""
        self.first.clear()
        self.created = self.updated = self.unchanged = 0

    def add(self, done: Done) -> None:
        """Add what became of some records."""
        self.first += done.views[: MAX_RETURNED - len(self.first)]
        self.created += done.created
        self.updated += done.updated
        self.unchanged += done.unchanged
        self.ignored |= done.ignored


@dataclass
class Done:
    """What became of a batch of records."""

    detached: dict[str, Body] = field(default_factory=dict)
    """The references that are set at the end, by the ids of the records."""
    views: list[RecordView] = field(default_factory=list)
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    ignored: set[str] = field(default_factory=set)


class Import:
    """An import of one file. Raises Malformed for lines that are not records, InvalidValues."""

    def __init__(
        self, definition: Definition, by: Principal, lines: Sequence[Line], options: Options
    ) -> None:
        self.definition, self.by, self.options = definition, by, options
        if options.upsert is not None:
            batch.key_field(definition, options.upsert, "upsert", by)
        self.id = new_id()
        self.faults = ImportProblems()
        self.lines: list[int] = []
        self.detached: dict[int, Body] = {}
        self.taken: set[tuple[object, ...]] = set()
        """Values of unique fields of records that were checked but not stored."""
        self.taken_files: set[str] = set()
        """The ids of their files."""
        self.keys: dict[object, int] = {}
        """With `upsert`: the first record with each value of the field."""
        self.outcome = Outcome()
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
    def _is_short(self) -> bool:
        """Whether one transaction is short enough not to block others.

        Superadmins' imports with ids always take one, as the records may refer to each other.
        """
        fits = len(self.records) <= self._batch_size()
        return fits or self.options.keep_ids or not db.has_one_writer()

    def steps(self) -> Iterator[Outcome]:
        """Do it; yields the outcome after each batch.

        Raises like `ImportProblems.check`, Stale, and if it was begun, Interrupted.
        """
        for count in self._in_one_transaction() if self._is_short else self._in_pieces():
            self.outcome.processed = count
            yield self.outcome

    def _in_one_transaction(self) -> Iterator[int]:
        """Store all records; yields the number of processed records after each batch."""
        limits = deadline.within(None) if self.options.keep_ids else nullcontext()
        with suppress(_Rollback), limits, self._transaction():
            records: Iterator[Placed] = iter(self.records)
            if self.options.keep_ids:
                ids = {body["id"] for _, body in self.records if _is_id(body.get("id"))}
                records = (self._detach_references(record, ids) for record in self.records)
            left_out: dict[str, Body] = {}
            while placed := list(islice(records, BATCH_SIZE)):
                done = self._write(placed)
                left_out |= done.detached
                self.outcome.add(done)
                yield placed[-1][0] + 1
            self.faults.check()
            self._attach_references(left_out)
            if self.options.dry_run:
                raise _Rollback

    def _in_pieces(self) -> Iterator[int]:
        """Check all records, then store them in short transactions; yields like the other."""
        for placed in self._pieces():
            with suppress(_Rollback), self._transaction():
                self.outcome.add(self._write(placed, is_check=True))
                raise _Rollback
            yield placed[-1][0] + 1
        self.faults.check()
        if not self.options.dry_run:
            self.outcome.restart()
            for placed in self._pieces():
                self._store(placed)

    def _store(self, placed: Sequence[Placed]) -> None:
        """Store a batch; once there are others, it is tried again or raises Interrupted."""
        stored = placed[0][0]
        for tries_left in reversed(range(MAX_RERUNS)):
            try:
                with versioned_cache.reloading() if stored else nullcontext(), self._transaction():
                    done = self._write(placed)
                    self.faults.check()
                self.outcome.add(done)
                return
            except (versioned_cache.Stale, AppError, DBAPIError) as error:
                if not stored:
                    raise
                if not tries_left or not isinstance(error, versioned_cache.Stale):
                    raise Interrupted(stored, len(self.records), error) from error

    def _pieces(self) -> Iterator[list[Placed]]:
        remaining = iter(self.records)
        while placed := list(islice(remaining, self._batch_size())):
            yield placed

    def _batch_size(self) -> int:
        return max(1, min(BATCH_SIZE, MAX_VALUES // len(self.definition.columns)))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        name = self.definition.name
        acting = actor.acting_for(ActorKind.IMPORT, self.id, name)
        with acting, service.transaction(name, self.by) as self.definition:
            yield

    def _write(self, placed: Sequence[Placed], *, is_check: bool = False) -> Done:
        """Store the valid records of a batch."""
        done, problems = Done(), Problems([index for index, _ in placed])
        # Exports contain system and computed fields, which only the service sets.
        unset = SYSTEM_FIELDS.keys() | self.definition.computed.keys()
        if not self.by.is_admin:
            unset |= self.definition.sequences.keys()
        bodies = [{n: v for n, v in body.items() if n not in unset} for _, body in placed]
        self._resolve_addresses(bodies)
        if self.options.upsert is None:
            self._check_masks(bodies, problems)
        self._write_numbers(bodies, problems)
        for name, number in self._largest_numbers.items():
            # Those that are drawn follow all of the file, of which other batches store some later.
            sequences.reserve(self.definition, name, self.by.require_account_id(), number)
        try:
            for change in self._prepared(placed, bodies, problems, done):
                self._save(change, done, is_check=is_check)
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
        return done

    def _prepared(
        self, placed: Sequence[Placed], bodies: Sequence[Body], problems: Problems, done: Done
    ) -> Iterator[Change]:
        """Validates the records of a batch: those to create, and those to update."""
        updates: Sequence[Change] = ()
        if self.options.upsert is None:
            creations = [
                changes.prepare_create(self.definition, bodies, problems, self.by, has_numbers=True)
            ]
        else:
            creations, updates = self._prepared_upsert(bodies, problems)
        items = dict(placed)
        for change in creations:
            sent = [items[index] for index in change.problems.indexes or ()]
            if self.options.keep_ids:
                change = self._with_ids(change, [body.get("id") for body in sent])
            yield self._with_creation(change, sent, done)
        yield from updates

    def _prepared_upsert(
        self, bodies: Sequence[Body], problems: Problems
    ) -> tuple[list[Change], list[Change]]:
        name, indexes = self.options.upsert or "", problems.indexes or ()
        key_field = self.definition.fields[name]
        keys = [batch.key_of(key_field, body, n, problems) for n, body in enumerate(bodies)]
        valid = list[int]()
        for number, (key, index) in enumerate(zip(keys, indexes, strict=True)):
            first = self.keys.setdefault(key, index)
            if key is not None and first != index:
                message = f"The record in line {self.lines[first]} of this file has the same."
                problems.add(number, [problem(name, "not_unique", message)])
            elif key is not None:
                valid.append(number)
        if not valid:
            return [], []
        some = problems.subset([indexes[number] for number in valid])
        key_values = (name, [keys[number] for number in valid])
        sent = [bodies[number] for number in valid]
        creations, updates = batch.prepare_upsert(
            self.definition, sent, key_values, some, set(), self.by, has_numbers=True
        )
        by_index = dict(zip(indexes, bodies, strict=True))
        for change in (*creations, *updates):
            own = [by_index[index] for index in change.problems.indexes or ()]
            # Masks that are those of the record were left out: they keep its value.
            written = change.written or [body.keys() for body in own]
            kept = zip(own, written, strict=True)
            left = [{n: one for n, one in body.items() if n in names} for body, names in kept]
            self._check_masks(left, change.problems)
        return creations, updates

    def _save(self, change: Change, done: Done, *, is_check: bool) -> None:
        """Store the valid records of a change, if any; adds to its problems."""
        change = changes.valid_part(change)
        changes.add_conflicts(change)
        if not change.before:
            self._check_numbers(change)
        if is_check:
            changes.add_duplicates(change, self.taken)
            self._check_files(change)
        change = changes.valid_part(change)
        indexes = change.problems.indexes or ()
        if not change.values:
            return
        if change.before:
            updated = len(changes.numbers_of_changed(change))
            done.updated += updated
            done.unchanged += len(change.values) - updated
        else:
            done.created += len(change.values)
            done.detached |= {
                row["id"]: self.detached[index]
                for index, row in zip(indexes, change.values, strict=True)
                if index in self.detached
            }
        imported = {
            row["id"]: unchanged.dump_creation(row)
            for row in (() if change.before else change.values)
            if row["created_at"] != row["updated_at"] or row["created_by"] != row["updated_by"]
        }
        with append.with_creations(imported) if imported else nullcontext():
            done.views += changes.save(change)

    def _with_creation(self, change: Change, sent: Sequence[Body], done: Done) -> Change:
        """Give new records the time and the person of their creation, as the file has them.

        Of a user of another account, and for others than admins, the record has those of the
        import, as if the file named none.
        """
        carried = {n for n in CREATION for body in sent if body.get(n) is not None}
        if not carried:
            return change
        if not self.by.is_admin:
            done.ignored |= carried
            return change
        account_id, time = self.by.require_account_id(), SYSTEM_COLUMNS["created_at"]
        given = {one for body in sent if isinstance(one := body.get("created_by"), str)}
        ids = people.by_address(account_id, {one for one in given if "@" in one})
        ids |= {one: one for one in (people.existing(account_id, given) if given else ())}
        rows = list[Body]()
        for index, (body, row) in enumerate(zip(sent, change.values, strict=True)):
            creation, found = dict[str, Any](), list[JSONObject]()
            created_at, created_by = body.get("created_at"), body.get("created_by")
            if created_at is not None:
                try:
                    creation["created_at"] = time.clean(created_at)
                except InvalidValue as error:
                    found.append(problem("created_at", error.code, str(error)))
                else:
                    if creation["created_at"] > row["created_at"]:
                        message = "This is in the future."
                        found.append(problem("created_at", "invalid_option", message))
            if isinstance(created_by, str) and created_by in ids:
                creation["created_by"] = ids[created_by]
            elif _is_id(created_by):
                done.ignored.add("created_by")
            elif created_by is not None:
                message = "There is no such user in this account."
                found.append(problem("created_by", "invalid_reference", message))
            change.problems.add(index, found)
            rows.append({**row, **creation})
        return replace(change, values=rows)

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
        for name, sequence in self.definition.sequences.items():
            for index, body in enumerate(bodies):
                if body.get(name) is not None:
                    try:
                        body[name] = sequence.given(body[name])
                    except InvalidValue as error:
                        problems.add(index, [problem(name, error.code, str(error))])
                        del body[name]

    @cached_property
    def _largest_numbers(self) -> Mapping[str, int]:
        """The largest number that the file has for each `sequence` field, if any."""
        largest = dict[str, int]()
        for name, sequence in self.definition.sequences.items() if self.by.is_admin else ():
            for _, body in self.records:
                with suppress(InvalidValue):
                    if body.get(name) is not None:
                        number = sequence.number(sequence.given(body[name]))
                        largest[name] = max(number, largest.get(name, 0))
        return largest

    def _check_numbers(self, change: Change) -> None:
        """Refuse numbers that records have with another prefix, or other zeros."""
        for name, sequence in self.definition.sequences.items():
            taken = sequences.taken(self.definition, sequence, change.values)
            for index, row in enumerate(change.values if taken else ()):
                is_known = change.problems.has(index) or row[name] is None
                if not is_known and sequence.number(row[name]) in taken:
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
        while access and (some := list(islice(ids, BATCH_SIZE))):
            rows = writes.lock(self.definition, scoped, some)
            ordered, bodies = [rows[id] for id in some], [left_out[id] for id in some]
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
