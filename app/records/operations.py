"""Operations on records of several collections, in one transaction: all of them or none.

They take effect in their order. Neighbours of one kind in one collection that do not need each
other go together, in the statements of a batch (`app/records/batch.py`). `{"$ref": "order.id"}` is
a value of the record that an earlier operation has named.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from app import config
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.context import deadline
from app.db import versioned_cache
from app.errors import (
    AppError,
    InvalidValues,
    NotFound,
    PayloadTooLarge,
    TooExpensive,
    problem,
    truncated,
)
from app.records import service, store
from app.records.read import views
from app.records.read.views import RecordView
from app.records.store import Row, SizeLimit
from app.records.write import cascade, changes
from app.records.write.values import Body, Problem, ProblemList, Problems
from app.types import JSONMapping
from app.web.preconditions import Preconditions
from app.web.serialization import CONTAINERS, dumps

REFERENCE = "$ref"
NAME = "^[A-Za-z_][A-Za-z0-9_]{0,62}$"
TARGET = re.compile(r"([A-Za-z_]\w{0,62})\.([A-Za-z_]\w{0,62})", re.ASCII)
OPERATIONS = {"POST": "create", "PATCH": "update", "PUT": "update", "DELETE": "delete"}
SCALARS = (str, int, float, type(None))
INVALID = "invalid_reference"
LONGEST_PLACE = 200
UNSEEN = "The operation {} gives no {} that you may view unmasked."


class Result(NamedTuple):
    """What became of an operation: the status, and the record as the caller may view it."""

    status: int
    body: orjson.Fragment | None


@dataclass(frozen=True)
class Operation:
    """An operation as it was sent."""

    number: int
    method: str
    collection: str
    id: Any
    body: Body
    name: str | None
    if_match: str | None

    @classmethod
    def of(cls, number: int, sent: JSONMapping) -> Operation:
        id, body, name = sent.get("id"), sent.get("body", {}), sent.get("as")
        return cls(number, sent["method"], sent["collection"], id, body, name, sent.get("if_match"))

    @property
    def place(self) -> str:
        return f"operations[{self.number}]"

    def references(self) -> Iterator[tuple[str, JSONMapping]]:
        """Each object with a `$ref`, with its place."""
        yield from _references(self.id, f"{self.place}.id")
        yield from _references(self.body, f"{self.place}.body")


def _references(value: object, place: str) -> Iterator[tuple[str, JSONMapping]]:
    if isinstance(value, dict):
        if REFERENCE in value:
            yield place, value
            return
        for name, one in value.items():
            if one.__class__ in CONTAINERS:
                yield from _references(one, f"{place}.{name}"[:LONGEST_PLACE])
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if one.__class__ in CONTAINERS:
                yield from _references(one, f"{place}[{index}]"[:LONGEST_PLACE])


class Places(Problems):
    """Problems that name the operation, and what of it is meant."""

    @contextmanager
    def of_one(self, index: int) -> Iterator[None]:
        """Have errors of the block name this operation."""
        try:
            yield
        except AppError as error:
            raise self.add_indexes(error, [index], error.error, error.message) from None

    def with_index(self, index: int, found: Sequence[Body]) -> list[Problem]:
        """Problems of one operation, with their places and its index."""
        number = index if self.indexes is None else self.indexes[index]
        return [{**one, "field": _place(number, one), "index": number} for one in found]


def _place(number: int, found: Body) -> str:
    place = f"operations[{number}]"
    if found["field"] is None:
        return place
    return f"{place}.id" if found["code"] == "not_found" else f"{place}.body.{found['field']}"


def run(sent: Sequence[JSONMapping], *, by: Principal) -> list[Result]:
    """Do all operations, or none; returns their results in order.

    Raises what `service.create`, `patch`, `replace` and `delete` raise, with the places in
    `details`, and PayloadTooLarge, AnswerTooLarge and TooExpensive if it is too much at once.
    """
    by.require_account_id()
    operations = [Operation.of(number, one) for number, one in enumerate(sent)]
    collections = _collections(operations)
    _check_references(operations, collections, by)
    with service.unverified_transaction(operations[0].collection, by) as (_, unchecked):
        own = (one.version_checks for one in collections.values())
        versioned_cache.verify_all({*unchecked.checks}.union(*own))
        return _Batch(collections, by).run(operations)


def _collections(operations: Sequence[Operation]) -> Mapping[str, Definition]:
    """The collections of operations, by the names that these give. Raises NotFound."""
    found, unknown = dict[str, Definition](), list[Problem]()
    for one in operations:
        try:
            found[one.collection] = definitions.get(one.collection)
        except NotFound as error:
            place = f"{one.place}.collection"
            unknown.append(problem(place, error.error, error.message, index=one.number))
    if unknown:
        raise NotFound(unknown[0]["message"], **truncated("details", unknown))
    return found


def _check_references(
    operations: Sequence[Operation], collections: Mapping[str, Definition], by: Principal
) -> None:
    """Check each `$ref`, and the names that they refer to. Raises InvalidValues."""
    known, found = dict[str, Operation](), ProblemList()
    later = {one.name for one in operations if one.name}
    for one in operations:
        for place, value in one.references():
            message = _fault(value, one, known, later, collections, by)
            if message:
                found.add([problem(place, INVALID, message, index=one.number)])
        if one.name in known:
            message = f"The operation {known[one.name].number} has this name already."
            found.add([problem(f"{one.place}.as", "not_unique", message, index=one.number)])
        elif one.name:
            known[one.name] = one
    if found.count:
        raise InvalidValues(found.first(), found.count)


def _fault(
    value: JSONMapping,
    operation: Operation,
    known: Mapping[str, Operation],
    later: set[str],
    collections: Mapping[str, Definition],
    by: Principal,
) -> str | None:
    """What is wrong with the object of a `$ref`; None if it may be followed."""
    target = value[REFERENCE]
    match = TARGET.fullmatch(target) if isinstance(target, str) else None
    if value is operation.body:
        return "A $ref stands for a value in a body, not for all of it."
    if len(value) > 1:
        return "A $ref has no other keys beside it."
    if match is None:
        return 'Must be the name of an operation and a field, such as "order.id".'
    name, field = match.groups()
    if name == operation.name and name not in known:
        return "An operation cannot refer to itself."
    if name not in known:
        is_later = "An operation refers to earlier ones only: {} comes later."
        return (is_later if name in later else "There is no operation {}.").format(name)
    access = accesses.if_open(by, collections[known[name].collection], "view")
    if field in SYSTEM_FIELDS or (access is not None and field in access.comparable):
        return None
    return UNSEEN.format(name, field)


class _Step(NamedTuple):
    """An operation with values in the place of its references."""

    operation: Operation
    id: str
    body: Body


class _Batch:
    """Operations as they are done, in one transaction."""

    def __init__(self, collections: Mapping[str, Definition], by: Principal) -> None:
        settings, limit = config.current(), deadline.limit.get()
        self._collections, self._by = collections, by
        self._collected = ProblemList()
        self._made: dict[str, RecordView] = {}
        """The records that operations have named."""
        self._results: list[Result] = []
        self._answer, self._rows = SizeLimit(), SizeLimit()
        self._most = settings.max_body_bytes if by.signed_in else settings.max_anonymous_body_bytes
        self._given = 0
        """The bytes that references stand for."""
        self._seconds, self._begun = limit.seconds if limit else math.inf, time.monotonic()

    def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Do them all; once one has problems, the others are only checked. Raises InvalidValues."""
        group = list[_Step]()
        for one in operations:
            if group and not self._goes_along(one, group):
                self._do(group)
                group = []
            step = self._resolved(one)
            if step is None:
                continue
            if step.id and any(step.id == other.id for other in group):
                self._do(group)
                group = []
            group.append(step)
        if group:
            self._do(group)
        if self._collected.count:
            raise InvalidValues(self._collected.first(), self._collected.count)
        return self._results

    def _goes_along(self, one: Operation, group: Sequence[_Step]) -> bool:
        """Whether an operation may be done together with those before it."""
        first = group[0].operation
        if one.method != first.method:
            return False
        if self._collections[one.collection] is not self._collections[first.collection]:
            return False
        targets = {value[REFERENCE].partition(".")[0] for _, value in one.references()}
        return not any(step.operation.name in targets for step in group)

    def _resolved(self, one: Operation) -> _Step | None:
        """An operation without references; None if one of them leads to nothing."""
        found, values = list[Problem](), dict[str, object]()
        for place, value in one.references():
            name, field = value[REFERENCE].split(".")
            if name not in self._made:
                return None  # that operation has problems
            view = self._made[name]
            given = values[value[REFERENCE]] = view.get(field)
            self._given += len(given) if isinstance(given, str) else 0
            if field not in view:
                found.append(problem(place, INVALID, UNSEEN.format(name, field), index=one.number))
            elif not isinstance(given, SCALARS):
                message = f"{field} is a list or an object, which nothing refers to."
                found.append(problem(place, INVALID, message, index=one.number))
        if self._given > self._most:
            message = f"What the references stand for has more than {self._most:,} bytes."
            raise PayloadTooLarge(message)
        id: Any = _filled(one.id, values)
        body: Body = _filled(one.body, values) if values else one.body
        if one.method != "POST" and not isinstance(id, str) and not found:
            found.append(problem(f"{one.place}.id", INVALID, "Must be an id.", index=one.number))
        self._collected.add(found)
        return None if found else _Step(one, id, body)

    def _do(self, group: Sequence[_Step]) -> None:
        """Do operations of one kind in one collection, if none before had problems."""
        if time.monotonic() - self._begun > self._seconds:
            raise TooExpensive(self._seconds)
        first = group[0].operation
        problems = Places([step.operation.number for step in group], self._collected)
        try:
            written = self._store(self._collections[first.collection], group, problems)
        except InvalidValues:
            if not self._collected.count:
                raise
            return
        except AppError as error:
            if "details" not in error.extra:
                places = range(len(group))
                problems.add_indexes(error, places, error.error, error.message)
            if not self._collected.count:
                raise
            self._collected.add(error.extra["details"])
            return
        status = {"POST": 201, "DELETE": 204}.get(first.method, 200)
        for step, view in zip(group, written, strict=False):
            if step.operation.name and view is not None:
                self._made[step.operation.name] = view
            text = None if view is None else dumps(view)
            self._answer.take(len(text or ""))
            self._results.append(Result(status, None if text is None else orjson.Fragment(text)))

    def _store(
        self, definition: Definition, group: Sequence[_Step], problems: Places
    ) -> Sequence[RecordView | None]:
        """Returns the records; none if there were problems before, when these are checked only."""
        had_problems, method = self._collected.count > 0, group[0].operation.method
        bodies = [step.body for step in group]
        if method == "POST":
            change = changes.prepare_create(definition, bodies, problems, self._by)
        else:
            access = accesses.for_operation(self._by, definition, OPERATIONS[method])
            rows = changes.lock_for_change(access, [step.id for step in group], bodies, problems)
            self._rows.take(sum(_long_bytes(definition, row) for row in rows))
            for index, (step, row) in enumerate(zip(group, rows, strict=True)):
                with problems.of_one(index):
                    changes.check_etag(access, row, Preconditions(step.operation.if_match))
            if method == "DELETE":
                if not had_problems:
                    cascade.remove(definition, rows, by=self._by, problems=problems)
                return [None] * len(group)
            absent = service.absent_values(access) if method == "PUT" else views.EMPTY
            change = changes.prepare_update(access, rows, bodies, problems, absent)
        if had_problems:
            return ()
        changes.check_batch(change)
        return changes.save(change)


def _filled(value: Any, values: Mapping[str, object]) -> Any:
    """The same with values in the place of references."""
    if isinstance(value, dict):
        if REFERENCE in value:
            return values[value[REFERENCE]]
        return {name: _filled(one, values) for name, one in value.items()}
    return [_filled(one, values) for one in value] if isinstance(value, list) else value


def _long_bytes(definition: Definition, row: Row) -> int:
    """About how many bytes the long values of a record have."""
    long = (row[name] for name in store.long_names(definition, definition.columns))
    return sum(len(one) if isinstance(one, str) else len(dumps(one)) for one in long if one)
