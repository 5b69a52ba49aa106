"""Validates request bodies against a collection; one record is a list of one.

Reports every problem of every record at once. Nothing here writes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from app import clock, db, rules
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions, masking, people
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import (
    PEOPLE,
    SYSTEM_FIELDS,
    Field,
    InvalidValue,
    ReferenceField,
    entries,
)
from app.db import versioned_cache
from app.errors import MAX_LISTED, AppError, Forbidden, InvalidValues, problem, truncated
from app.files import ownership
from app.records import store
from app.records.read import views
from app.records.read.views import SYSTEM_COLUMNS
from app.records.store import reads
from app.rules import Subject, Type
from app.types import JSONMapping, JSONObject
from app.web import serialization

Body = JSONMapping
Values = dict[str, Any]
Problem = JSONObject
EMPTY: Body = {}
MISSING = ("required_missing", "required_null")
LIST_CHANGES = {"$add", "$remove"}
A_LIST_CHANGE = "A change of a list has $add and $remove, each of them a list of entries."
ONLY_IN_CHANGES = "$add and $remove are for PATCH, which changes a list. Send the whole list here."
UNSEEN_LIST = "You do not see this list, so you can set it, but not add to it or take from it."
EMPTY_TEXT = "This field is required and cannot be empty."
Missing = dict[int, list[Problem]]
"""Problems of required fields without a value, which handlers may still set, by record."""


class ProblemList:
    """The first problems of a request, with their number, codes and records."""

    def __init__(self) -> None:
        self.count = 0
        self.codes: set[str] = set()
        self.indexes: set[int] = set()
        self._first: list[Body] = []

    def add(self, found: Sequence[Body], more: int = 0) -> None:
        """Add problems; `more` counts further ones that are not listed."""
        self.count += len(found) + more
        self.codes |= {one["code"] for one in found}
        self.indexes |= {one["index"] for one in found if "index" in one}
        self._first += found
        if len(self._first) > 10 * MAX_LISTED:
            self._first = self.first()

    def first(self) -> list[Body]:
        """The first problems, sorted by the index of their record."""
        return sorted(self._first, key=lambda one: one.get("index", 0))[:MAX_LISTED]


class Problems:
    """The problems of a request's records; `indexes` is None for a request of one record."""

    def __init__(
        self, indexes: Sequence[int] | None = None, collected: ProblemList | None = None
    ) -> None:
        self.indexes, self.collected = indexes, collected or ProblemList()

    def with_index(self, index: int, found: Sequence[Body]) -> list[Problem]:
        """Problems of one record, with its index if the request has several."""
        index_of = {} if self.indexes is None else {"index": self.indexes[index]}
        return [{**one, **index_of} for one in found]

    def add(self, index: int, found: Sequence[Body]) -> None:
        if found:
            self.collected.add(self.with_index(index, found))

    def has(self, index: int) -> bool:
        """Whether there are problems of this record."""
        if self.indexes is None:
            return self.collected.count > 0
        return self.indexes[index] in self.collected.indexes

    def add_indexes(
        self, error: Exception, indexes: Sequence[int], code: str, message: str
    ) -> Exception:
        """The error with the indexes of its records in `details`, if the request has several."""
        if isinstance(error, AppError) and self.indexes is not None:
            field = "id" if code == "not_found" else None
            noted = ProblemList()
            for index in indexes:
                noted.add(self.with_index(index, [problem(field, code, message)]))
            error.extra |= truncated("details", noted.first(), noted.count)
        return error

    def refusal(self, access: Access, indexes: Sequence[int]) -> Exception:
        """The error for records that the rule refuses."""
        error = access.refusal()
        return self.add_indexes(error, indexes, "rule_denied", error.args[0])

    def part(self, index: int) -> Problems:
        """The problems of one of the records; they collect into the same list."""
        return self.subset(None if self.indexes is None else [self.indexes[index]])

    def subset(self, indexes: Sequence[int] | None) -> Problems:
        """The problems of some of the records; they collect into the same list."""
        return type(self)(indexes, self.collected)

    def check(self) -> None:
        """Raise InvalidValues if there are problems."""
        if self.collected.count:
            raise InvalidValues(self.collected.first(), self.collected.count)


def clean_creates(
    access: Access,
    bodies: Sequence[Body],
    system: Sequence[Body],
    problems: Problems,
    missing: Missing | None = None,
    *,
    has_numbers: bool = False,
) -> list[Values]:
    """The values to store for new records, defaults included.

    What is missing is a problem, or if given goes to `missing`. With `has_numbers` those of
    `sequence` fields may be among the values.
    """
    numbers: Collection[str] = access.definition.sequences if has_numbers else ()
    _check_written(access, bodies, problems, numbers)
    rows: list[Values] = []
    evaluates = bool(access.definition.default_nodes)
    for index, (body, given) in enumerate(zip(bodies, system, strict=True)):
        if index:
            db.check_time()
        found = _right_problems(access, body.keys() - numbers if numbers else body)
        body = _without_numbers(access, body) if not has_numbers else body
        subject = _subject(access, given) if evaluates else None
        rows.append(clean_create(access.definition, body, given, found, subject))
        problems.add(index, found if missing is None else _without_missing(index, found, missing))
    _check_references(access, rows, [one["account_id"] for one in system], problems)
    _resolve_files(access, rows, system, problems)
    return rows


def clean_create(
    definition: Definition,
    body: Body,
    given: Body,
    found: list[Problem],
    subject: Subject | None = None,
) -> Values:
    """A new record with defaults and system values; adds problems to `found`.

    Expressions of defaults look at the subject; without one at nobody.
    """
    defaults = definition.defaults
    if definition.default_nodes:
        subject = subject or Subject()
        defaults = {**defaults, **_evaluated_defaults(definition, body, given, found, subject)}
    found += _system_problems(body, {"account_id": given["account_id"]})
    found += _computed_problems(definition, body)
    whole, missing = {**defaults, **body}, defaults.keys() - body.keys()
    return {**given, **_clean(definition, whole, found, missing)}


def _subject(access: Access, given: Body) -> Subject:
    """The caller as a record's defaults see it, with the attributes of the record's account.

    Who is of another account, as a superadmin may be, leaves nothing of their person there.
    """
    by, account_id, subject = access.caller, given["account_id"], access.subject
    if account_id != by.account_id:
        account = principals.reload_active_account(account_id)
        subject = principals.rule_caller(replace(by, account=account))
    if subject.account_id != account_id:
        subject = replace(subject, id=None, email=None, attributes={})
    return subject


def _evaluated_defaults(
    definition: Definition, body: Body, given: Body, found: list[Problem], subject: Subject
) -> Values:
    """The JSON values of default expressions; those that their fields refuse are problems."""
    now, values = given.get("created_at") or clock.now(), Values()
    for name in definition.default_nodes.keys() - body.keys():
        field, node = definition.fields[name], definition.default_nodes[name]
        value = rules.evaluate(node, rules.Context({}, subject, now=now))
        if isinstance(value, datetime):
            value = clock.iso(value) if field.rule_type is Type.DATETIME else value.date()
        if isinstance(value, date):
            value = value.isoformat()
        try:
            values[name] = None if value is None else field.shown(field.clean(value))
        except InvalidValue as error:
            found.append(problem(name, error.code, f"The default is not valid: {error}"))
    return values


def clean_update(
    definition: Definition,
    row: Body,
    body: Body,
    found: list[Problem],
    missing: Body = EMPTY,
) -> Values:
    """The changed values of a record; `missing` has those not sent. Adds problems to `found`."""
    found += [*_system_problems(body, row), *_computed_problems(definition, body)]
    return _clean(definition, {**missing, **body}, found, missing.keys())


def without_echoed_masks(
    definition: Definition, row: Body, sent: Body, masked: Collection[str]
) -> Body:
    """The body without masked values that the caller sent back unchanged."""
    echoed = set()
    for name in masked:
        field = definition.declared.get(name)
        if field is None or name not in sent or name not in definition.personal:
            continue
        if row[name] is None:  # which is shown as it is
            is_echo = sent[name] is None and not field.required
        else:
            is_echo = sent[name] == masking.masked(field, field.shown(row[name]))
        if is_echo:
            echoed.add(name)
    return {name: value for name, value in sent.items() if name not in echoed}


def _without_echoes(access: Access, row: Body, sent: Body) -> Body:
    """Return the body without values that the service sets, and the caller sees and sent back.

    For fields that depend on the time, any value of the type may be one that the caller saw.
    """
    definition = access.definition
    names = sent.keys() & {*definition.computed, *definition.sequences}
    if not names:
        return sent
    [seen] = views.unmasked_fields(definition, [row], access.caller)
    echoed = {
        name
        for name in names & seen
        if _is_echo(definition.declared[name], row[name], sent[name], name in definition.unsettled)
    }
    return {name: value for name, value in sent.items() if name not in echoed}


def _without_echoed_empty(access: Access, row: Body, sent: Body) -> Body:
    """Return the body without empty texts of required fields that the caller sees and sent back.

    Records of earlier releases have some, and so do those of fields that were not required.
    """
    required = access.definition.required
    empty = {name for name, value in sent.items() if value == "" and name in required}
    echoed = {name for name in empty if row[name] == ""}
    if echoed:
        echoed &= views.unmasked_fields(access.definition, [row], access.caller)[0]
    return {name: value for name, value in sent.items() if name not in echoed} if echoed else sent


def _is_echo(field: Field, stored: object, value: object, depends_on_time: bool) -> bool:
    if value is None:
        return stored is None or depends_on_time
    try:
        cleaned = field.clean(value)
        if isinstance(stored, str):  # computed from texts that were stored before NFC was enforced
            stored = field.clean(stored)
    except InvalidValue:
        return False
    return depends_on_time or cleaned == stored


def clean_updates(
    access: Access,
    rows: Sequence[store.Row],
    bodies: Sequence[Body],
    absent: Body,
    problems: Problems,
    missing: Missing | None = None,
) -> list[Values]:
    """The changed values of each record; `absent` has the values of fields not sent.

    What is missing is a problem, or if given goes to `missing`.
    """
    _check_written(access, bodies, problems)
    changes: list[Values] = []
    sequences = access.definition.sequences
    masked: Sequence[Collection[str]] = [()] * len(rows)
    if not access.definition.personal.isdisjoint(set().union(*bodies)):
        # Only of fields that the caller sees: an accepted mask of a hidden one confirms a guess.
        masked = views.masked_fields(access.definition, rows, access.caller)
    for index, (row, sent) in enumerate(zip(rows, bodies, strict=True)):
        body = without_echoed_masks(access.definition, row, sent, masked[index])
        body = _without_echoes(access, row, body)
        body = _without_echoed_empty(access, row, body)
        unsent = {name: value for name, value in absent.items() if name not in sent}
        db.check_time()
        echoed = sequences and sequences.keys() & (sent.keys() - body.keys())
        found = _right_problems(access, sent.keys() - echoed if echoed else sent)
        body = _without_numbers(access, body)
        changes.append(clean_update(access.definition, row, body, found, unsent))
        problems.add(index, found if missing is None else _without_missing(index, found, missing))
    _check_references(access, changes, [row["account_id"] for row in rows], problems, rows)
    _resolve_files(access, changes, rows, problems)
    return changes


def _without_missing(index: int, found: list[Problem], missing: Missing) -> list[Problem]:
    if not found:
        return found
    missing[index] = [one for one in found if one["code"] in MISSING]
    return [one for one in found if one["code"] not in MISSING]


def clean_handled(
    access: Access, row: store.Row, body: Body, index: int, problems: Problems
) -> Values:
    """The values that a handler has set in a record of an account; adds to `problems`.

    Nobody's rights limit them. References need a record of the account, viewable or not.
    """
    definition, found = access.definition, list[Problem]()
    found += [_right_problem(access, name) for name in body if name in definition.sequences]
    cleaned = _clean(definition, body, found, ())
    for name, target in definition.references.items():
        ids = {*entries(definition.fields[name], cleaned.get(name))}
        if ids and ids - existing(target, row["account_id"], ids):
            message = f"There is no such record in {target}."
            found.append(problem(name, "invalid_reference", message))
    problems.add(index, found)
    if not found:
        _resolve_files(access, [cleaned], [row], problems.part(index))
    return cleaned


def existing(collection: str, account_id: str, ids: set[str]) -> set[str]:
    """The ids, of these, of records of a collection, or of users, of an account."""
    if collection == PEOPLE:
        return people.existing(account_id, ids)
    target = definitions.get(collection)
    return reads.existing_ids(target, store.scope(target, account_id), ids)


def rule_inputs(access: Access, bodies: Sequence[Body]) -> list[Values]:
    """The values that the rule reads as `@request.data`, by record."""
    if access.condition is None:
        return [{} for _ in bodies]
    return [clean_valid(access.definition, body) for body in bodies]


def with_list_changes(
    access: Access,
    rows: Sequence[store.Row],
    bodies: Sequence[Body],
    problems: Problems | None = None,
) -> Sequence[Body]:
    """The bodies with whole lists in the place of `{"$add": [...], "$remove": [...]}`.

    The rows are locked, so that no other change gets lost. Changes that are not valid, or of a list
    that the caller does not see, are left out, and added to `problems` if given.
    """
    lists = access.definition.changeable_lists
    if not lists:
        return bodies
    result = list(bodies)
    for index, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        sent = {n: value for n, value in body.items() if n in lists and is_list_change(value)}
        if not sent:
            continue
        [seen] = views.unmasked_fields(access.definition, [row], access.caller)
        found = list[Problem]()
        whole = dict(body)
        for name, change in sent.items():
            try:
                if name not in seen:
                    raise InvalidValue("invalid_type", UNSEEN_LIST)
                whole[name] = _changed_list(lists[name], row[name], change)
            except InvalidValue as error:
                del whole[name]
                found.append(problem(name, error.code, str(error)))
        result[index] = whole
        if problems is not None:
            problems.add(index, found)
    return result


def with_new_lists(
    definition: Definition, bodies: Sequence[Body], problems: Problems
) -> Sequence[Body]:
    """The bodies of new records with the entries that are added in the place of changes of lists.

    Changes that are not valid are left out, and added to `problems`.
    """
    result = list(bodies)
    for name, field in definition.changeable_lists.items():
        for index, body in enumerate(result):
            if not is_list_change(body.get(name)):
                continue
            whole = result[index] = {**body, name: None}
            try:
                whole[name] = _changed_list(field, None, body[name])
            except InvalidValue as error:
                problems.add(index, [problem(name, error.code, str(error))])
    return result


def is_list_change(value: object) -> bool:
    """Whether a value has the form of a change of a list, right or wrong."""
    return isinstance(value, dict) and any(key.startswith("$") for key in value)


def _changed_list(field: Field, stored: Any, change: Mapping[str, object]) -> list[str]:
    """A stored list without some entries, then with new ones at its end. Raises InvalidValue."""
    if not change.keys() <= LIST_CHANGES or not all(isinstance(v, list) for v in change.values()):
        raise InvalidValue("invalid_type", A_LIST_CHANGE)
    added, removed = (
        [field.entry(one) for one in change.get(key, ())]  # type: ignore[attr-defined]
        for key in ("$add", "$remove")
    )
    present = [] if stored is None else field.listed(stored)
    gone = set(removed)
    return list(dict.fromkeys([*(one for one in present if one not in gone), *added]))


def clean_valid(definition: Definition, body: Body) -> Values:
    """The valid values of a body, system fields included; invalid ones are left out."""
    found = {}
    for name, value in body.items():
        field = definition.fields.get(name) or SYSTEM_COLUMNS.get(name)
        if field is not None and value is not None:
            with suppress(InvalidValue):
                found[name] = field.clean(value)
    return found


def _check_written(
    access: Access, bodies: Sequence[Body], problems: Problems, numbers: Collection[str] = ()
) -> None:
    try:
        accesses.check_writable(access, set().union(*bodies).difference(numbers))
    except Forbidden as error:
        if problems.indexes is None:
            raise
        noted, denied = ProblemList(), error.extra["details"]
        for index, body in enumerate(bodies):
            noted.add(problems.with_index(index, [one for one in denied if one["field"] in body]))
        error.extra |= truncated("details", noted.first(), noted.count)
        raise


def _clean(definition: Definition, body: Body, found: list[Problem], missing: Any) -> Values:
    values: Values = {}
    for name, value in body.items():
        field = definition.fields.get(name)
        if field is None:
            if name not in definition.columns:
                found.append(problem(name[:80], "unknown_field", "There is no such field."))
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(problem(name, "number_out_of_range", serialization.OUT_OF_RANGE))
        elif value is None:
            if field.required and name in missing:
                found.append(problem(name, "required_missing", "This field is required."))
            elif field.required:
                message = "This field is required and cannot be null."
                found.append(problem(name, "required_null", message))
            values[name] = None
        else:
            try:
                values[name] = field.clean(value)
            except InvalidValue as error:
                is_change = field.is_list and is_list_change(value)
                message = ONLY_IN_CHANGES if is_change else str(error)
                found.append(problem(name, error.code, message))
            else:
                # A default may be empty, of a definition of earlier releases.
                if field.required and values[name] == "" and name not in missing:
                    found.append(problem(name, "required", EMPTY_TEXT))
    return values


def _system_problems(body: Body, stored: Body) -> list[Problem]:
    found = []
    for name, system in SYSTEM_FIELDS.items():
        if name not in body:
            continue
        known, sent = stored.get(name), body[name]
        if isinstance(system.like, ReferenceField) and isinstance(sent, str):
            sent = sent.lower()
        if name not in stored or sent != (system.like.shown(known) if known else None):
            message = "This field is set by the service."
            found.append(problem(name, "field_read_only", message))
    return found


def _computed_problems(definition: Definition, body: Body) -> list[Problem]:
    message = "This field is computed from others, which can be changed."
    names = [name for name in body if name in definition.computed]
    return [problem(name, "field_read_only", message) for name in names]


def _without_numbers(access: Access, body: Body) -> Body:
    """Return the body without what nobody writes, of which `_right_problems` tells."""
    sequences = access.definition.sequences
    return {n: one for n, one in body.items() if n not in sequences} if sequences else body


def _right_problems(access: Access, names: Iterable[str]) -> list[Problem]:
    return [_right_problem(access, name) for name in names if name in access.read_only]


def _right_problem(access: Access, name: str) -> Problem:
    if missing := access.definition.missing.get(name):
        return problem(name, "type_not_loaded", missing.not_loaded)
    message = "The field's writable_if does not let you write it."
    if name in access.definition.sequences:
        message = "The service numbers records."
    return problem(name, "field_read_only", message)


def _check_references(
    access: Access,
    values: Sequence[Values],
    accounts: Sequence[str],
    problems: Problems,
    before: Sequence[store.Row] = (),
) -> None:
    """Runs one query per referenced collection and account, and one for users."""
    fields, references = access.definition.fields, access.definition.references
    wanted: dict[tuple[str, str], set[str]] = {}
    for row, account_id in zip(values, accounts, strict=True):
        for name, target in references.items():
            if ids := entries(fields[name], row.get(name)):
                wanted.setdefault((target, account_id), set()).update(ids)
    visible = {key: _visible(*key, ids, access.caller) for key, ids in wanted.items()}
    for index, (row, account_id) in enumerate(zip(values, accounts, strict=True)):
        lost = {
            name: hidden
            for name, target in references.items()
            if (ids := entries(fields[name], row.get(name)))
            and (hidden := {*ids} - visible[target, account_id])
        }
        if lost and before:
            # An unchanged reference may come back, unless accepting it would confirm a guess.
            [seen] = views.unmasked_fields(access.definition, [before[index]], access.caller)
            former = {n: {*entries(fields[n], before[index][n])} for n in lost if n in seen}
            lost = {n: ids for n, ids in lost.items() if ids - former.get(n, set())}
        found = []
        for name in lost:
            target = references[name]
            if target != PEOPLE:
                accesses.check_scope(access.caller, definitions.get(target), "view")
            message = f"There is no such record in {target}."
            if target == PEOPLE:
                message = "There is no such user in this account."
            found.append(problem(name, "invalid_reference", message))
        problems.add(index, found)


def _resolve_files(
    access: Access, rows: Sequence[Values], records: Sequence[Body], problems: Problems
) -> None:
    """Replace the ids of files by what is stored; runs one query if there are any."""
    if not access.definition.files:
        return
    found = ownership.Resolved(access.definition, rows, records, access.caller)
    for index, (row, record) in enumerate(zip(rows, records, strict=True)):
        problems.add(index, found.apply(row, record))


def _visible(collection: str, account_id: str, ids: set[str], by: Principal) -> set[str]:
    if collection == PEOPLE:
        return people.existing(account_id, ids)
    target = definitions.get(collection)
    versioned_cache.verify(target.version_checks)
    if not accesses.is_open(by, target, "view"):
        return set()
    access = accesses.for_operation(by, target, "view")
    scoped = store.scope(target, account_id, access.where)
    return reads.existing_ids(target, scoped, ids, access.parameters)
