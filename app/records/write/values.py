"""What is sent for records, checked against their collection: always for many, as one is a few.

Every problem of every record is told at once; nothing here writes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app import db
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections import masking
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, Refused
from app.db import versioned_cache
from app.errors import MAX_LISTED, AppError, Forbidden, InvalidValues, problem, truncated
from app.records import store
from app.records.read import views
from app.records.read.views import SYSTEM_COLUMNS
from app.records.store import reads
from app.rest import json_input

Body = Mapping[str, Any]
Values = dict[str, Any]
NOTHING: Body = {}


class Noted:
    """The first problems of a request, how many there are, which codes, and of which records."""

    def __init__(self) -> None:
        self.count = 0
        self.codes: set[str] = set()
        self.places: set[int] = set()
        self._first: list[Mapping[str, Any]] = []

    def add(self, found: Sequence[Mapping[str, Any]], more: int = 0) -> None:
        """Remember problems, and that there are so many `more` like them."""
        self.count += len(found) + more
        self.codes |= {one["code"] for one in found}
        self.places |= {one["index"] for one in found if "index" in one}
        self._first += found
        if len(self._first) > 10 * MAX_LISTED:
            self._first = self.first()

    def first(self) -> list[Mapping[str, Any]]:
        """The first of them, by the places of their records."""
        return sorted(self._first, key=lambda one: one.get("index", 0))[:MAX_LISTED]


class Problems:
    """What is wrong with the records of a request; `places` are theirs in it, None for just one."""

    def __init__(self, places: Sequence[int] | None = None, noted: Noted | None = None) -> None:
        self.places, self.noted = places, noted or Noted()

    def told(self, index: int, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Problems of one record, with its place where there may be several."""
        place = {} if self.places is None else {"index": self.places[index]}
        return [{**one, **place} for one in found]

    def add(self, index: int, found: Sequence[Mapping[str, Any]]) -> None:
        """Remember problems of one record."""
        if found:
            self.noted.add(self.told(index, found))

    def placed(
        self, error: Exception, indexes: Sequence[int], code: str, message: str
    ) -> Exception:
        """An error with the places of the records that it is about, where there may be several."""
        if isinstance(error, AppError) and self.places is not None:
            field = "id" if code == "not_found" else None
            noted = Noted()
            for index in indexes:
                noted.add(self.told(index, [problem(field, code, message)]))
            error.extra |= truncated("details", noted.first(), noted.count)
        return error

    def refusal(self, access: Access, indexes: Sequence[int]) -> Exception:
        """What tells the caller which records the rule refuses."""
        error = access.refusal()
        return self.placed(error, indexes, "rule_denied", error.args[0])

    def of(self, places: Sequence[int]) -> Problems:
        """The same for some of the records."""
        return Problems(places, self.noted)

    def check(self) -> None:
        """Raise InvalidValues with what was found."""
        if self.noted.count:
            raise InvalidValues(self.noted.first(), self.noted.count)


def clean_new(
    access: Access, bodies: Sequence[Body], system: Sequence[Body], problems: Problems
) -> list[Values]:
    """The stored values of new records, defaults included."""
    _check_written(access, bodies, problems)
    rows: list[Values] = []
    for index, (body, given) in enumerate(zip(bodies, system, strict=True)):
        db.check_time()
        found: list[dict[str, Any]] = []
        rows.append(fresh(access.definition, body, given, found))
        problems.add(index, found)
    _check_references(access, rows, [one["account_id"] for one in system], problems)
    return rows


def fresh(definition: Definition, body: Body, given: Body, found: list[dict[str, Any]]) -> Values:
    """A new record with its defaults and what the service gives it; problems go to `found`."""
    defaults = {name: field.default for name, field in definition.fields.items()}
    found += _system_problems(body, {"account_id": given["account_id"]})
    whole, missing = defaults | dict(body), defaults.keys() - body.keys()
    return {**given, **_clean(definition, whole, found, missing)}


def changed(
    definition: Definition,
    row: Body,
    body: Body,
    found: list[dict[str, Any]],
    missing: Body = NOTHING,
) -> Values:
    """What a record changes to, `missing` being what was not sent; problems go to `found`."""
    found += _system_problems(body, row)
    return _clean(definition, {**missing, **body}, found, missing.keys())


def meant(definition: Definition, row: Body, sent: Body, masked: Collection[str]) -> Body:
    """What of a body is meant as a change: not what comes back of these fields as shown masked."""
    kept = {n for n in masked if n in sent and _is_masked_view(definition, row, n, sent[n])}
    return {n: v for n, v in sent.items() if n not in kept}


def clean_changes(
    access: Access,
    rows: Sequence[store.Row],
    bodies: Sequence[Body],
    absent: Body,
    problems: Problems,
) -> list[Values]:
    """The values that each record is to change to; `absent` are those of what was not sent."""
    _check_written(access, bodies, problems)
    changes: list[Values] = []
    masked = _seen_masked(access, rows, bodies)
    for index, (row, sent) in enumerate(zip(rows, bodies, strict=True)):
        body = meant(access.definition, row, sent, masked[index])
        missing = {name: value for name, value in absent.items() if name not in sent}
        db.check_time()
        found: list[dict[str, Any]] = []
        changes.append(changed(access.definition, row, body, found, missing))
        problems.add(index, found)
    _check_references(access, changes, [row["account_id"] for row in rows], problems, rows)
    return changes


def sent_to(access: Access, bodies: Sequence[Body]) -> list[Values]:
    """What the access's rule sees of bodies."""
    if access.condition is None:
        return [{} for _ in bodies]
    return [taken(access.definition, body) for body in bodies]


def taken(definition: Definition, body: Body) -> Values:
    """The values that fields, also the system's, take of a body; of what they refuse, nothing."""
    found = {}
    for name, value in body.items():
        field = definition.fields.get(name) or SYSTEM_COLUMNS.get(name)
        if field is not None and value is not None:
            with suppress(Refused):
                found[name] = field.clean(value)
    return found


def _check_written(access: Access, bodies: Sequence[Body], problems: Problems) -> None:
    try:
        accesses.check_written(access, set().union(*bodies))
    except Forbidden as error:
        if problems.places is None:
            raise
        noted, denied = Noted(), error.extra["details"]
        for index, body in enumerate(bodies):
            noted.add(problems.told(index, [one for one in denied if one["field"] in body]))
        error.extra |= truncated("details", noted.first(), noted.count)
        raise


def _seen_masked(
    access: Access, rows: Sequence[Body], bodies: Sequence[Body]
) -> Sequence[Collection[str]]:
    # Of what is hidden no mask can come back: what would be told of a guess is the value's own.
    if access.definition.personal.isdisjoint(set().union(*bodies)):
        return [()] * len(rows)
    return views.seen_masked(access.definition, rows, access.caller)


def _is_masked_view(definition: Definition, row: Body, name: str, value: Any) -> bool:
    field = definition.fields.get(name)
    if field is None or row[name] is None or not field.pii:
        return False
    return bool(value == masking.masked(field, field.shown(row[name])))


def _clean(definition: Definition, body: Body, found: list[dict[str, Any]], missing: Any) -> Values:
    values: Values = {}
    for name, value in body.items():
        field = definition.fields.get(name)
        if field is None:
            if name not in definition.columns:
                found.append(problem(name[:80], "unknown_field", "There is no such field."))
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(problem(name, "number_out_of_range", json_input.OUT_OF_RANGE))
        elif value is None:
            if field.required:
                found.append(_lacking(name, absent=name in missing))
            values[name] = None
        else:
            try:
                values[name] = field.clean(value)
            except Refused as error:
                found.append(problem(name, error.code, str(error)))
    return values


def _lacking(name: str, *, absent: bool) -> dict[str, Any]:
    if absent:
        return problem(name, "required_missing", "This field is required.")
    return problem(name, "required_null", "This field is required and cannot be null.")


def _system_problems(body: Body, stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, system in SYSTEM_FIELDS.items():
        if name not in body:
            continue
        known = stored.get(name)
        if name not in stored or body[name] != (system.like.shown(known) if known else None):
            message = "This field is set by the service."
            found.append(problem(name, "field_read_only", message))
    return found


def _check_references(
    access: Access,
    values: Sequence[Values],
    accounts: Sequence[str],
    problems: Problems,
    before: Sequence[store.Row] = (),
) -> None:
    """One look-up for each collection that is referred to, and account."""
    references = {n: f.collection for n, f in access.definition.fields.items() if f.collection}
    wanted: dict[tuple[str, str], set[str]] = {}
    for row, account_id in zip(values, accounts, strict=True):
        for name, target in references.items():
            if row.get(name) is not None:
                wanted.setdefault((target, account_id), set()).add(row[name])
    visible = {key: _visible(*key, ids, access.caller) for key, ids in wanted.items()}
    for index, (row, account_id) in enumerate(zip(values, accounts, strict=True)):
        lost = [
            name
            for name, target in references.items()
            if row.get(name) is not None and row[name] not in visible[target, account_id]
        ]
        if lost and before:
            lost = _newly_lost(access, before[index], row, lost)
        problems.add(index, [_lost_reference(name, references[name]) for name in lost])


def _newly_lost(access: Access, stored: store.Row, row: Values, lost: list[str]) -> list[str]:
    # What a record refers to already may come back as it is. Of a reference that the caller does
    # not see this would tell whether a guess is right.
    seen = views.seen_plainly(access.definition, stored, access.caller)
    return [name for name in lost if name not in seen or row[name] != stored[name]]


def _lost_reference(name: str, target: str) -> dict[str, Any]:
    return problem(name, "invalid_reference", f"There is no such record in {target}.")


def _visible(collection: str, account_id: str, ids: set[str], by: Principal) -> set[str]:
    target = definitions.named(collection)
    versioned_cache.verify(target.version_checks)
    if not accesses.may(by, target, "view"):
        return set()
    access = accesses.of(by, target, "view")
    scoped = store.scope(target, account_id, access.where)
    return reads.existing(target, scoped, ids, access.parameters)
