"""Calls handlers before records are written, in the transaction of the write.

A handler sees records whole and unmasked, in the form of the API. What it changes is cleaned as
what callers send, but nobody's rights limit it; the collection's rule then judges the record as it
will be stored. A record that is not valid in itself reaches no handler; fields that are required
may be left for one to set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from copy import deepcopy

from orjson import Fragment

from app import events
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definitions import Definition
from app.errors import Malformed, NotFound, problem
from app.extensions import registry, running
from app.extensions.caller import Caller
from app.extensions.registry import OF_COLLECTIONS, Handler, Kind
from app.extensions.running import HandlerFailed, Refused
from app.records import store
from app.records.store import Row, writes
from app.records.write import changes
from app.records.write.values import Missing, Problems, Values, clean_handled
from app.types import JSONMapping, JSONObject
from app.web import serialization

MAX_DEPTH = 8
CONTAINERS = (dict, list)
_depth: ContextVar[int] = ContextVar("before_depth", default=0)
_handlers: dict[tuple[str, str], BeforeHandlers] = {}
KINDS = (
    ("create", Kind.BEFORE_CREATE),
    ("update", Kind.BEFORE_UPDATE),
    ("delete", Kind.BEFORE_DELETE),
)


@registry.on_change
def install() -> None:
    """Have writes of records call handlers, if there are any."""
    _handlers.clear()
    for operation, kind in KINDS:
        for subject, found in registry.of(kind).items():
            key = (operation, subject.lower())
            former = _handlers[key].handlers if key in _handlers else ()
            _handlers[key] = BeforeHandlers([*former, *found])
    changes.before = _find if _handlers else None


@events.subscribe(events.CollectionNameEnds)
def _keep_named(event: events.CollectionNameEnds) -> None:
    """A collection that extensions name keeps its name: their code cannot follow."""
    for handler in registry.handlers():
        if handler.kind in OF_COLLECTIONS and handler.subject.lower() == event.name.lower():
            message = f"The extension {handler.extension} names it: {handler.name}."
            event.problems.append(problem("name", "collection_in_use", message))


def _find(operation: str, collection: str) -> BeforeHandlers | None:
    return _handlers.get((operation, collection.lower()))


class BeforeHandlers:
    """The handlers of one operation of a collection."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.handlers = handlers

    def creating(
        self, access: Access, rows: Sequence[Values], problems: Problems, missing: Missing
    ) -> None:
        """Call them for new records, whose values they may change; adds to `problems`."""
        for index, row in enumerate(rows):
            if not problems.has(index):
                definition = access.definition
                record = as_json(definition, definition.fields, row)
                self._apply(access, row, row, (), record, index, problems, missing)
            if index in missing:
                problems.add(index, missing[index])

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
        """Call them for changes of locked records, which they may change; adds to `problems`.

        Returns the records: handlers may have written them, too. Raises NotFound if one is gone.
        """
        definition, before = access.definition, changes.handler_writes()
        stored = [name for name in definition.columns if name not in definition.computed]
        for index, (row, values) in enumerate(zip(rows, changed, strict=True)):
            if not problems.has(index):
                old = as_json(definition, definition.columns, row)
                record = as_json(definition, stored, {**row, **values})
                self._apply(access, row, values, (old,), record, index, problems, missing)
            problems.add(index, missing.get(index, ()))
        if in_trash or changes.handler_writes() == before:
            return rows
        scoped = store.scope(definition, rows[0]["account_id"])
        now = writes.lock(definition, scoped, [row["id"] for row in rows])
        if len(now) < len(rows):
            raise NotFound(changes.NO_RECORD)
        return [now[row["id"]] for row in rows]

    def _apply(
        self,
        access: Access,
        row: Row,
        values: Values,
        old: tuple[JSONObject, ...],
        record: JSONObject,
        index: int,
        problems: Problems,
        missing: Missing,
    ) -> None:
        """Call them for a record, and put what they have changed among its values."""
        shown = record.copy()
        for name, value in record.items():
            if value.__class__ in CONTAINERS:
                shown[name] = deepcopy(value)
        by, account_id = access.caller, row["account_id"]
        if by.account_id != account_id:
            by = _in_account(by, account_id)
        refused = list[JSONMapping]()
        lacks = bool(missing.get(index))
        is_shared = old and len(self.handlers) > 1
        for handler in self.handlers:
            given = deepcopy(old) if is_shared else old
            try:
                refused += _refusals(handler, by, *given, record, is_incomplete=lacks)
            except HandlerFailed:
                if not lacks:
                    raise
                break  # the answer says what is missing
        if refused:
            problems.add(index, refused)
        if record != shown:
            names = record.keys() | shown.keys()
            new = {n: record.get(n) for n in names if n not in shown or record.get(n) != shown[n]}
            body = self._as_sent(access.definition, new)
            values |= clean_handled(access, row, body, index, problems)
            left = missing.get(index, ())
            missing[index] = [one for one in left if values.get(one["field"]) is None]

    def _as_sent(self, definition: Definition, values: JSONObject) -> JSONObject:
        """Values that handlers have set, as if they had been sent. Raises HandlerFailed."""
        others = sorted(map(str, values.keys() - definition.fields.keys()))
        try:
            if others:
                raise KeyError(f"{definition.name} stores no {', '.join(others)}")
            body: JSONObject = serialization.parse(serialization.dumps(values))  # type: ignore[assignment]
        except (KeyError, TypeError, Malformed) as error:
            raise running.failed(self.handlers[-1], error) from error
        return body

    def deleting(
        self, definition: Definition, rows: Sequence[Row], by: Principal
    ) -> list[Sequence[JSONMapping]]:
        """Call them for locked records that are about to go; returns the refusals of each."""
        found = list[Sequence[JSONMapping]]()
        for row in rows:
            caller, refused = _in_account(by, row["account_id"]), list[JSONMapping]()
            for handler in self.handlers:
                record = as_json(definition, definition.columns, row)
                refused += _refusals(handler, caller, record)
            found.append(refused)
        return found


def _refusals(
    handler: Handler, by: Principal, *records: JSONObject, is_incomplete: bool = False
) -> Sequence[JSONMapping]:
    """Call a handler; returns what it refuses."""
    depth = _depth.get()
    if depth >= MAX_DEPTH:
        raise running.failed(handler, RecursionError(f"handlers nest deeper than {MAX_DEPTH}"))
    token = _depth.set(depth + 1)
    try:
        caller, passing = Caller(by, handler), running.BEFORE
        running.run(handler, caller, *records, passing=passing, is_incomplete=is_incomplete)
    except Refused as error:
        return error.details
    finally:
        _depth.reset(token)
    return ()


def _in_account(by: Principal, account_id: str) -> Principal:
    """The caller in the account of a record, which a superadmin may name."""
    if by.account_id == account_id:
        return by
    return by.acting_in(principals.find_active_account(account_id))


def as_json(definition: Definition, names: Iterable[str], row: Row) -> JSONObject:
    """Fields of a record that is stored, or will be, in the form of the API."""
    record = {name: row.get(name) for name in names}
    for name, encode, json_type in definition.encoders:
        value = record.get(name)
        if value.__class__ in CONTAINERS:  # cleaned, and not stored yet
            record[name] = deepcopy(value)
        elif value is not None and value.__class__ is not json_type:
            shown = encode(value)
            record[name] = serialization.plain(shown) if shown.__class__ is Fragment else shown
    return record
