"""What callers do with records (spec 4.2, contract section 5).

Each function decides first what the caller may do (`collections.access`), and then runs one
statement to read, or one transaction to write. Everything it was told from a cache is checked by
that statement or at the start of that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import IntegrityError

from app import clock, db, stamps
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, Field, Refused
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.records import query, store

Body = Mapping[str, Any]
Shown = dict[str, Any]
Parameters = Mapping[str, Sequence[str]]


def page(
    collection: str, parameters: Parameters, *, skip: int, limit: int, count: bool, by: Principal
) -> tuple[list[Shown], int | None]:
    """The records that the caller may list, and how many there are in all."""
    definition = definitions.named(collection)
    access = accesses.of(by, definition, "list")
    asked = query.parse(definition, access.readable, parameters)
    scoped = store.scope(definition, by.account_id, access.where)
    rows, total = store.read_page(
        definition,
        [*scoped, *asked.where],
        asked.order_by,
        skip,
        limit,
        count,
        [*by.stamps, definition.stamp],
    )
    names = asked.names or list(access.readable)
    return [_shown(row, names, access.readable) for row in rows], total


def get(collection: str, record_id: str, fields: str | None, *, by: Principal) -> Shown:
    """One record. Raises NotFound, also for one of another account."""
    definition = definitions.named(collection)
    access = accesses.of(by, definition, "view")
    found: list[dict[str, Any]] = []
    names = query.names_of(access.readable, fields, found) or list(access.readable)
    if found:
        raise InvalidValues(found)
    scoped = store.scope(definition, by.account_id, access.where)
    row = store.read_one(definition, scoped, record_id, [*by.stamps, definition.stamp])
    if row is None:
        raise _no_record()
    return _shown(row, names, access.readable)


def create(collection: str, body: Body, *, by: Principal) -> Shown:
    """Store a new record. Raises InvalidValues, Forbidden or Conflict."""
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "create")
        account_id = _account_to_write(by, body)
        system = _new_system_values(account_id, by)
        values = _clean_new(definition, access, body, system, by)
        with _refusable(definition, system | values, None):
            row = store.insert(definition, system | values)
        return _viewed(definition, row, by)


def replace(collection: str, record_id: str, body: Body, *, by: Principal) -> Shown:
    """Set every field that the caller may write: as sent, else to its default, else to null."""
    with _changing(collection, record_id, by) as (definition, access, row):
        absent = {
            name: field.default
            for name, field in definition.fields.items()
            if name in access.writable and name not in body
        }
        accesses.check_written(access, definition, set(body))
        return _change(definition, row, absent | dict(body), set(absent), by)


def patch(collection: str, record_id: str, body: Body, *, by: Principal) -> Shown:
    """Set the fields that were sent, and no others."""
    with _changing(collection, record_id, by) as (definition, access, row):
        accesses.check_written(access, definition, set(body))
        return _change(definition, row, body, set(), by)


def delete(collection: str, record_id: str, *, by: Principal) -> None:
    """Remove a record. Raises Conflict while another record refers to it."""
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "delete")
        by.one_account()
        scoped = store.scope(definition, by.account_id, access.where)
        row = store.lock_one(definition, scoped, record_id)
        if row is None:
            raise _no_record()
        try:
            store.delete(definition, row)
        except IntegrityError as error:
            if db.violation(error).kind != "foreign_key":
                raise
            raise Conflict("Other records refer to this one.") from error


@contextmanager
def _writing(collection: str, by: Principal) -> Iterator[Definition]:
    try:
        with db.transaction():
            definition = definitions.named(collection)
            stamps.verify([*by.stamps, definition.stamp])
            yield definition
    except _Clash as clash:
        # Asked after the rollback: within a failed transaction PostgreSQL answers nothing.
        raise _explained(clash) from clash


@contextmanager
def _changing(
    collection: str, record_id: str, by: Principal
) -> Iterator[tuple[Definition, Access, store.Row]]:
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "update")
        by.one_account()
        scoped = store.scope(definition, by.account_id, access.where)
        row = store.lock_one(definition, scoped, record_id)
        if row is None:
            raise _no_record()
        yield definition, access, row


def _change(
    definition: Definition, row: store.Row, body: Body, missing: set[str], by: Principal
) -> Shown:
    found = _system_problems(body, row)
    values = _clean_fields(definition, body, found, missing)
    found += _reference_problems(definition, values, row["account_id"], by)
    if found:
        raise InvalidValues(found)
    values |= {"updated_at": clock.now(), "updated_by": by.user_id}
    with _refusable(definition, {**row, **values}, row["id"]):
        stored = store.update(definition, row, values)
    return _viewed(definition, stored, by)


def _account_to_write(by: Principal, body: Body) -> str:
    chosen = body.get("account_id")
    if not by.is_superadmin or chosen is None:
        return by.one_account()
    account = principals.account_named(chosen) if isinstance(chosen, str) else None
    if account is None:
        raise InvalidValues([problem("account_id", "invalid_reference", "No such account.")])
    return account.id


def _new_system_values(account_id: str, by: Principal) -> dict[str, Any]:
    now = clock.now()
    return {
        "account_id": account_id,
        "id": db.new_id(),
        "created_at": now,
        "updated_at": now,
        "created_by": by.user_id,
        "updated_by": by.user_id,
    }


def _clean_new(
    definition: Definition,
    access: Access,
    body: Body,
    system: Mapping[str, Any],
    by: Principal,
) -> dict[str, Any]:
    accesses.check_written(access, definition, set(body))
    found = _system_problems(body, {"account_id": system["account_id"]})
    defaults = {name: field.default for name, field in definition.fields.items()}
    values = _clean_fields(definition, defaults | dict(body), found, set(defaults) - set(body))
    found += _reference_problems(definition, values, system["account_id"], by)
    if found:
        raise InvalidValues(found)
    return values


def _clean_fields(
    definition: Definition,
    body: Body,
    found: list[dict[str, Any]],
    missing: set[str],
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in body.items():
        field = definition.fields.get(name)
        if field is None:
            if name not in SYSTEM_FIELDS:
                found.append(problem(name[:80], "unknown_field", "There is no such field."))
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


def _reference_problems(
    definition: Definition, values: Mapping[str, Any], account_id: str, by: Principal
) -> list[dict[str, Any]]:
    wanted: dict[str, dict[str, str]] = {}
    for name, field in definition.fields.items():
        if field.collection and values.get(name) is not None:
            wanted.setdefault(field.collection, {})[name] = values[name]
    found = []
    for target_name, ids in wanted.items():
        visible = _visible(target_name, set(ids.values()), account_id, by)
        message = f"There is no such record in {target_name}."
        found += [
            problem(name, "invalid_reference", message)
            for name, id in ids.items()
            if id not in visible
        ]
    return found


def _visible(collection: str, ids: set[str], account_id: str, by: Principal) -> set[str]:
    target = definitions.named(collection)
    stamps.verify([target.stamp])
    if not accesses.may(by, target, "view"):
        return set()
    access = accesses.of(by, target, "view")
    return store.existing(target, store.scope(target, account_id, access.where), ids)


class _Clash(Exception):
    """A record that the database refused, with what is needed to say why."""

    def __init__(self, definition: Definition, values: Body, record_id: str | None) -> None:
        super().__init__()
        self.definition, self.values, self.record_id = definition, values, record_id


@contextmanager
def _refusable(definition: Definition, values: Body, record_id: str | None) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise _Clash(definition, values, record_id) from error


def _explained(clash: _Clash) -> Exception:
    error = clash.__cause__
    kind = db.violation(error).kind if isinstance(error, IntegrityError) else "other"
    if kind == "foreign_key":
        message = "A record that this one refers to is gone."
        names = [name for name, field in clash.definition.fields.items() if field.collection]
        return InvalidValues([problem(name, "invalid_reference", message) for name in names])
    if kind == "not_null":
        # A required field came with a change of the schema between our look and our writing.
        return stamps.Stale()
    if kind != "unique":
        return clash
    names = store.clashing(clash.definition, clash.values, clash.record_id)
    message = "Another record has this value already."
    details = [problem(name, "not_unique", message) for name in names]
    return Conflict(message, field=names[0] if names else None, details=details)


def _viewed(definition: Definition, row: store.Row, by: Principal) -> Shown:
    # Whoever may write but not view learns only that it was done.
    if not accesses.may(by, definition, "view"):
        system = {
            name: field for name, field in definition.columns.items() if name in SYSTEM_FIELDS
        }
        return _shown(row, list(system), system)
    readable = accesses.of(by, definition, "view").readable
    return _shown(row, list(readable), readable)


def _shown(row: store.Row, names: Sequence[str], fields: Mapping[str, Field]) -> Shown:
    return {
        name: None if (value := row[name]) is None else fields[name].shown(value) for name in names
    }


def _no_record() -> NotFound:
    return NotFound("There is no such record.")
