"""Writes records: many in a few statements; one record is a list of one.

Runs inside `service.transaction`. `prepare_...` validates all records of a request; `save` writes
them, checks the rule and publishes them. Any error rolls everything back.

Integrity errors become API errors after the rollback, only for callers who may know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy.exc import IntegrityError

from app import clock, db, events, rules
from app.accounts.usage import quotas
from app.accounts.usage.models import RECORDS, ROW_BYTES
from app.audit import records as audit
from app.auth import principal as principals
from app.auth.principal import OTHER_ACCOUNT, Principal
from app.collections import access as accesses
from app.collections import links, sequences
from app.collections.access import Access
from app.collections.definitions import Definition
from app.db import errors, versioned_cache
from app.db.versioned_cache import VersionChecks
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, Unauthorized, problem
from app.files import ownership
from app.ids import new_id
from app.records import store
from app.records.read import views
from app.records.read.views import RecordView
from app.records.store import Row, reads, references, trash, writes
from app.records.store.reads import UniqueKey
from app.records.write import values
from app.records.write.values import Body, Missing, Problems, Values
from app.types import JSONObject
from app.web.preconditions import Preconditions

NO_RECORD = "There is no such record."
TAKEN = "Another record has this value already."
GONE = "A record that this one refers to is gone."
HANDLER_WRITES = "handler_writes"


class BeforeHandlers(Protocol):
    """What is called before one operation of a collection, in its transaction."""

    def creating(
        self, access: Access, rows: Sequence[Values], problems: Problems, missing: Missing
    ) -> None:
        """Call it for new records; adds to their values, and to `problems`."""

    def updating(
        self,
        access: Access,
        rows: Sequence[Row],
        changed: Sequence[Values],
        problems: Problems,
        missing: Missing,
        *,
        in_trash: bool = False,
    ) -> Sequence[Row]:
        """Call it for changes of locked records; returns the records, which it may have written.

        Those in the trash it cannot have.
        """

    def deleting(
        self, definition: Definition, rows: Sequence[Row], by: Principal
    ) -> list[Sequence[Body]]:
        """Call it for locked records that are about to go; returns the problems of each."""


before: Callable[[str, str], BeforeHandlers | None] | None = None
"""Finds what is called before an operation of a collection; None if nothing ever is."""


def note_handler_write() -> None:
    """Note that what is called before a write has written records itself."""
    db.notes()[HANDLER_WRITES] = handler_writes() + 1


def handler_writes() -> int:
    """How often it has in this transaction."""
    number: int = db.notes().get(HANDLER_WRITES, 0)
    return number


@dataclass(frozen=True)
class Change:
    """Validated records to store; `before` is empty for new ones."""

    access: Access
    before: Sequence[Row]
    values: Sequence[Body]
    sent: Sequence[Body]
    problems: Problems
    has_given_ids: bool = False
    """Whether new records have ids of their own choice, which may be taken."""
    written: Sequence[Collection[str]] = ()
    """The fields of each of `before` that the caller sets."""


def prepare_create(
    definition: Definition,
    bodies: Sequence[Body],
    problems: Problems,
    by: Principal,
    record_ids: Sequence[str] | None = None,
    *,
    has_numbers: bool = False,
) -> Change:
    """Validates new records, with `record_ids` under their former ids; adds to `problems`.

    These, and those of who says so, may have numbers. Raises Forbidden, Unauthorized.
    """
    has_numbers = has_numbers or record_ids is not None
    access = accesses.for_operation(by, definition, "create")
    access.check_open()
    check_quotas(by, len(bodies))
    system = new_system_values(_accounts_to_write(by, bodies, problems), by.user_id)
    if record_ids is not None:
        system = [{**one, "id": id} for one, id in zip(system, record_ids, strict=True)]
    handlers = before("create", definition.name) if before else None
    if handlers is None:
        rows = values.clean_creates(access, bodies, system, problems, has_numbers=has_numbers)
    else:
        missing: Missing = {}
        rows = values.clean_creates(
            access, bodies, system, problems, missing, has_numbers=has_numbers
        )
        handlers.creating(access, rows, problems, missing)
        check_quotas(by, len(bodies))  # once more, as they may have created records
    sent = values.rule_inputs(access, bodies)
    return Change(access, (), rows, sent, problems, has_given_ids=record_ids is not None)


def check_quotas(by: Principal, new: int) -> None:
    """Raise QuotaExceeded if the caller's account may not store so many more records."""
    if by.account is not None and by.account.quotas:
        quotas.check(by.account.id, by.account.quotas, RECORDS, new)
        quotas.check(by.account.id, by.account.quotas, ROW_BYTES)


def prepare_update(
    access: Access,
    rows: Sequence[Row],
    bodies: Sequence[Body],
    problems: Problems,
    absent: Body = views.EMPTY,
    *,
    in_trash: bool = False,
) -> Change:
    """Validates changes of locked records; adds to `problems`.

    Those without `absent` values may change lists. `in_trash` they are not in their table.
    """
    check_quotas(access.caller, 0)
    if not absent:
        bodies = values.with_list_changes(access, rows, bodies, problems)
    handlers = before("update", access.definition.name) if before else None
    if handlers is None:
        changes = values.clean_updates(access, rows, bodies, absent, problems)
        written = [tuple(one) for one in changes]
    else:
        missing: Missing = {}
        changes = values.clean_updates(access, rows, bodies, absent, problems, missing)
        written = [tuple(one) for one in changes]
        rows = handlers.updating(access, rows, changes, problems, missing, in_trash=in_trash)
    stamp = {"updated_at": clock.now(), "updated_by": access.caller.user_id}
    stamped = [{**one, **stamp} for one in changes]
    sent = values.rule_inputs(access, bodies)
    return Change(access, rows, stamped, sent, problems, written=written)


def check_batch(*prepared: Change) -> None:
    """Raise InvalidValues if a batch has problems; adds values that are not unique."""
    if any(one.problems.collected.count for one in prepared):
        for change in map(valid_part, prepared):
            for index, keys in _clashing(change):
                # Refusals by the rule are left out, as it was not checked for the other records.
                if keys:
                    change.problems.add(index, not_unique(keys))
        prepared[0].problems.check()


def valid_part(change: Change) -> Change:
    """Return the records of a batch that have no problems."""
    indexes, faulty = change.problems.indexes or (), change.problems.collected.indexes
    return _part(change, [n for n, index in enumerate(indexes) if index not in faulty])


def _part(change: Change, numbers: Sequence[int]) -> Change:
    """Return some of the records of a change."""
    indexes = change.problems.indexes
    return replace(
        change,
        before=[change.before[n] for n in numbers] if change.before else (),
        values=[change.values[n] for n in numbers],
        sent=[change.sent[n] for n in numbers],
        problems=change.problems.subset([indexes[n] for n in numbers] if indexes else None),
        written=[change.written[n] for n in numbers] if change.written else (),
    )


def numbers_of_changed(change: Change) -> list[int]:
    """Return the numbers of the records whose values change; the others are not written.

    A value that the caller sets in a field without seeing it unmasked counts as a change:
    that nothing changed would confirm a guess.
    """
    fields, number = change.access.definition.fields, len(change.before)
    same = [
        index
        for index, (row, new) in enumerate(zip(change.before, change.values, strict=True))
        if all(
            fields[name].read_back(value) == row[name]
            for name, value in new.items()
            if name in fields
        )
    ]
    written = [fields.keys() & change.written[index] for index in same]
    if any(written):
        rows = [change.before[index] for index in same]
        seen = views.unmasked_fields(change.access.definition, rows, change.access.caller)
        both = zip(same, written, seen, strict=True)
        same = [index for index, names, shown in both if names <= shown]
    return sorted({*range(number)} - {*same})


def add_conflicts(change: Change) -> None:
    """Add problems for unique values that a stored record already has."""
    for index, keys in _clashing(change):
        _note_clash(change, index, keys)


def add_duplicates(change: Change, taken: set[tuple[object, ...]]) -> None:
    """Add problems for unique values in `taken`, then add these records' values to it."""
    keys, before = change.access.definition.unique_keys, frozenset(taken)
    for index, row in enumerate((_after(change) or change.values) if keys else ()):
        values = {names: reads.unique_value(row, names) for names in keys}
        own = {names: (names, *value) for names, value in values.items() if value}
        repeated = [names for names, key in own.items() if key in before]
        if repeated:
            may = is_allowed(change.access, row, change.sent[index])
            _note_clash(change, index, repeated if may else ())
        taken.update(own.values())


def _note_clash(change: Change, index: int, keys: Sequence[UniqueKey]) -> None:
    refused = [problem(None, "rule_denied", str(change.access.refusal()))]
    change.problems.add(index, not_unique(keys) if keys else refused)


def _clashing(change: Change) -> Iterator[tuple[int, Sequence[UniqueKey]]]:
    """The conflicting keys by index; none if the rule refuses the record, to reveal nothing."""
    access, rows = change.access, _after(change) or change.values
    for index, keys in reads.find_conflicts(access.definition, rows).items():
        yield index, keys if is_allowed(access, rows[index], change.sent[index]) else ()


def _after(change: Change) -> list[Row]:
    both = zip(change.before, change.values, strict=bool(change.before))
    return [{**row, **one, rules.OLD: row} for row, one in both]


def save(change: Change, unchecked: VersionChecks = versioned_cache.NO_CHECKS) -> list[RecordView]:
    """Store new records or locked ones, and publish each that has changed.

    Returns them as the caller may view them. Verifies `unchecked` with new records. Raises Stale,
    WriteRefused, and Forbidden if the rule refuses a record as it is stored: by then it is
    written, so whoever catches these must not commit the transaction.
    """
    access, before = change.access, change.before
    if access.definition.sequences and not before:
        change = replace(change, values=sequences.numbered(access.definition, change.values))
    differing = numbers_of_changed(change) if before else range(len(change.values))
    part = change if len(differing) == len(change.values) else _part(change, differing)
    written = _write(part, unchecked) if differing else ()
    stored = [*before] or [*written]
    for index, row in zip(differing, written, strict=True):
        stored[index] = row
    if access.condition is not None:
        changed = stored
        if before:
            changed = [{**row, rules.OLD: old} for row, old in zip(stored, before, strict=True)]
        may = views.rule_matches(access, changed, change.sent)
        refused = [index for index, open_ in enumerate(may) if not open_]
        if refused:
            raise change.problems.refusal(access, refused)
    operation = "update" if before else "create"
    for index, row in zip(differing, written, strict=True):
        previous = before[index] if before else None
        announce(access.definition, operation, row, previous, access.caller)
    return views.render_written(access.definition, stored, access.caller)


def _write(change: Change, unchecked: VersionChecks) -> Sequence[Row]:
    """Insert records, or update the locked ones; returns the stored rows.

    Where the database neither computes nor may refuse a value, the statement is queued as an ORM
    session queues what it flushes: it runs before the transaction's next one, else as its last.
    """
    definition, before = change.access.definition, change.before
    may_be_queued = len(before) <= 1 and not change.has_given_ids
    stored = writes.predict(definition, before, change.values) if may_be_queued else None

    def write() -> Sequence[Row]:
        unchecked.verify()
        try:
            if stored is not None:
                writes.write(definition, before, change.values)
                return stored
            if before:
                written = writes.update(definition, before, change.values)
            else:
                written = writes.insert(definition, change.values)
                replaces = change.has_given_ids and definition.trash_days
                if replaces and (gone := trash.forget(definition, written)):
                    audit.record_purged(definition, written[0]["account_id"], gone)
            if definition.lists:
                links.follow(definition, before, change.values)
            return written
        except IntegrityError as error:
            rows = _after(change) or stored or change.values
            raise WriteRefused(change.access, rows, change.sent, change.problems) from error

    if stored is None:
        return write()
    # SQLite's other writers wait from the first statement on: 0.52 ms for a create this way, and
    # 0.75 ms if subscribers and the view come after it (medians of 900); longer for a batch.
    db.defer(write)
    return stored


def announce(
    definition: Definition,
    operation: str,
    record: Row | None,
    previous: Row | None,
    by: Principal,
    *,
    is_restored: bool = False,
) -> None:
    """Publish RecordChanged for one record."""
    account_id = (record or previous or {})["account_id"]
    if definition.files:
        ownership.follow(definition, record, previous)
    rows = (record, previous)
    view = views.access_of_row
    about = (definition, account_id, operation, *rows, by, view, is_restored)
    events.publish(events.RecordChanged(*about))


def lock_for_change(
    access: Access,
    record_ids: Sequence[str],
    bodies: Sequence[Body],
    problems: Problems,
    unchecked: VersionChecks = versioned_cache.NO_CHECKS,
) -> list[Row]:
    """Lock records that the caller may change. Raises NotFound if the caller cannot see one.

    For one record the same statement verifies `unchecked`. Raises Stale.
    """
    definition, by = access.definition, access.caller
    by.require_account_id()
    if len(record_ids) > 1:
        scoped = store.scope(definition, by.account_id)
        locked: Mapping[str, Row] = writes.lock(definition, scoped, record_ids)
    else:
        row = writes.lock_one(definition, by.account_id, record_ids[0], unchecked)
        locked = {} if row is None else {record_ids[0]: row}
    gone = [index for index, id in enumerate(record_ids) if id not in locked]
    if gone:
        raise problems.add_indexes(not_found(access), gone, "not_found", NO_RECORD)
    rows = [locked[id] for id in record_ids]
    bodies = values.with_list_changes(access, rows, bodies)
    check_rule(access, rows, values.rule_inputs(access, bodies), problems)
    return rows


def check_rule(
    access: Access, rows: Sequence[Row], sent: Sequence[Body], problems: Problems
) -> None:
    """Raise Forbidden for records that the rule refuses, NotFound if the caller cannot see them.

    A rule that judges the change does so once it is made, for records that the caller may view.
    """
    if access.judges_change:
        viewed = views.view_access(access.definition, access.caller)
        may = views.rule_matches(viewed, rows) if viewed else [False] * len(rows)
    else:
        may = views.rule_matches(access, rows, sent)
    refused = [index for index, open_ in enumerate(may) if not open_]
    if not refused:
        return
    view = views.view_access(access.definition, access.caller)
    seen = views.rule_matches(view, [rows[i] for i in refused]) if view else [False] * len(refused)
    hidden = [index for index, open_ in zip(refused, seen, strict=True) if not open_]
    if hidden:
        raise problems.add_indexes(not_found(access), hidden, "not_found", NO_RECORD)
    raise problems.refusal(access, refused)


def check_etag(access: Access, row: Row, conditions: Preconditions) -> None:
    """Raise PreconditionFailed if the record's ETag does not fit."""
    if conditions:
        seen = views.render_written(access.definition, [row], access.caller)[0]
        conditions.check(seen.etag)


def not_found(access: Access) -> Exception:
    """NotFound; Unauthorized if signing in could help."""
    if not access.caller.signed_in and access.about_caller:
        return Unauthorized()
    return NotFound(NO_RECORD)


def _accounts_to_write(
    by: Principal, bodies: Sequence[Body], problems: Problems
) -> Sequence[str | None]:
    if not by.is_superadmin:  # others act in one account; naming it is a `field_read_only`
        return [by.account_id] * len(bodies)
    chosen = [body.get("account_id") for body in bodies]
    if not any(one is not None for one in chosen):
        return [by.require_account_id()] * len(bodies)
    texts = {one for one in chosen if isinstance(one, str)}
    named = {one: principals.reload_active_account(one) for one in texts}
    if not by.may_act_elsewhere and any(one and one.id != by.account_id for one in named.values()):
        raise Forbidden(OTHER_ACCOUNT)
    accounts = []
    for index, one in enumerate(chosen):
        account = named.get(one) if isinstance(one, str) else None
        if one is None:
            accounts.append(by.require_account_id())
        elif account is None:
            problems.add(index, [problem("account_id", "invalid_reference", "No such account.")])
        else:
            accounts.append(account.id)
    problems.check()
    return accounts


def new_system_values(accounts: Sequence[str | None], user_id: str | None) -> list[Values]:
    """Return the system fields of new records, one for each of the accounts."""
    now, system = clock.now(), list[Values]()
    for account_id in accounts:
        system.append(
            {
                "account_id": account_id,
                "id": new_id(),
                "created_at": now,
                "updated_at": now,
                "created_by": user_id,
                "updated_by": user_id,
            }
        )
    return system


class WriteRefused(Exception):
    """The database refused records; carries what the explanation needs."""

    def __init__(
        self,
        access: Access,
        rows: Sequence[store.Row],
        sent: Sequence[Body],
        problems: Problems,
    ) -> None:
        super().__init__()
        self.access, self.rows, self.sent, self.problems = access, rows, sent, problems

    @property
    def kind(self) -> str:
        """The kind of the violated constraint."""
        error = self.__cause__
        return errors.violation_of(error).kind if isinstance(error, IntegrityError) else "other"


@contextmanager
def explain_refusals() -> Iterator[None]:
    """Explain a WriteRefused after the transaction inside the block has ended."""
    try:
        yield
    except WriteRefused as clash:
        raise explained(clash) from clash


def explained(clash: WriteRefused) -> Exception:
    """The error to raise for a refusal, after the rollback."""
    if clash.kind == "foreign_key":
        names = [*clash.access.definition.references]
        return InvalidValues([problem(name, "invalid_reference", GONE) for name in names])
    if clash.kind == "not_null":
        # A concurrent change of the schema added a required field.
        return versioned_cache.Stale()
    if clash.kind != "unique":
        return clash
    access, rows = clash.access, clash.rows
    allowed = [is_allowed(access, *one) for one in zip(rows, clash.sent, strict=True)]
    if not all(allowed):
        # A caller whose record the rule refuses must not learn which values exist.
        refused = [index for index, is_open in enumerate(allowed) if not is_open]
        return clash.problems.refusal(access, refused)
    details: list[JSONObject] = []
    for index, keys in reads.find_conflicts(access.definition, rows).items():
        details += clash.problems.with_index(index, not_unique(keys))
    message = details[0]["message"] if details else TAKEN
    return Conflict(message, field=details[0]["field"] if details else None, details=details)


def not_unique(keys: Sequence[UniqueKey]) -> list[JSONObject]:
    """The problems of duplicate values, one per field."""
    messages: dict[str, str] = {}
    for names in keys:
        together = f"Another record has the same values of {', '.join(names)} already."
        for name in names:
            messages.setdefault(name, TAKEN if len(names) == 1 else together)
    return [problem(name, "not_unique", message) for name, message in messages.items()]


def is_allowed(access: Access, row: store.Row, sent: Body) -> bool:
    """Whether a record that is not stored meets the rule, given what was sent for it."""
    return references.allows(access, row, sent)
