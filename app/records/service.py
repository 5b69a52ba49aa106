"""What callers do with records (spec 4.2, contract section 5).

Each function decides first what the caller may do (`collections.access`), and then runs one
statement to read, or one transaction to write. Everything it was told from a cache is checked by
that statement or at the start of that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy.exc import DBAPIError, IntegrityError

from app import clock, db, stamps
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections import masking
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, Refused
from app.errors import Conflict, InvalidValues, NotFound, Unauthorized, problem
from app.records import cascade, query, store

Body = Mapping[str, Any]
Shown = dict[str, Any]
Parameters = Mapping[str, Sequence[str]]
SYSTEM_COLUMNS = {name: one.like for name, one in SYSTEM_FIELDS.items()}


def page(
    collection: str, parameters: Parameters, *, skip: int, limit: int, count: bool, by: Principal
) -> tuple[list[Shown], int | None]:
    """The records that the caller may list, and how many there are in all."""
    definition = definitions.named(collection)
    access = accesses.of(by, definition, "list")
    asked = query.parse(access, parameters)
    scoped = store.scope(definition, by.account_id, access.where)
    rows, total = store.read_page(
        definition,
        [*scoped, *asked.where],
        asked.order_by,
        skip,
        limit,
        count,
        [*by.stamps, definition.stamp, *asked.stamps],
        {**access.parameters, **asked.bound},
    )
    names = asked.names or list(access.readable)
    return [_shown(row, names, access) for row in rows], total


def get(collection: str, record_id: str, fields: str | None, *, by: Principal) -> Shown:
    """One record. Raises NotFound, also for one of another account."""
    definition = definitions.named(collection)
    access = accesses.of(by, definition, "view")
    found: list[dict[str, Any]] = []
    names = query.names_of(access.readable, fields, found) or list(access.readable)
    if found:
        raise InvalidValues(found)
    scoped = store.scope(definition, by.account_id, access.where)
    checked = [*by.stamps, definition.stamp]
    row = store.read_one(definition, scoped, record_id, checked, access.parameters)
    if row is None:
        raise _missing(access)
    return _shown(row, names, access)


def create(collection: str, body: Body, *, by: Principal) -> Shown:
    """Store a new record. Raises InvalidValues, Forbidden or Conflict."""
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "create")
        access.check_open()
        account_id = _account_to_write(by, body)
        system = _new_system_values(account_id, by)
        values = _clean_new(definition, access, body, system, by)
        sent = _sent(definition, body)
        with _refusable(access, system | values, None, sent):
            row = store.insert(definition, system | values)
        _check_allowed(access, row, sent)
        cascade.tell(definition, "create", row, None, by)
        return _viewed(definition, row, by)


def replace(collection: str, record_id: str, body: Body, *, by: Principal) -> Shown:
    """Set every field that the caller may write: as sent, else to its default, else to null."""
    with _changing(collection, record_id, body, by) as (access, row):
        absent = {
            name: field.default
            for name, field in access.definition.fields.items()
            if name in access.writable and name not in body
        }
        return _change(access, row, body, absent)


def patch(collection: str, record_id: str, body: Body, *, by: Principal) -> Shown:
    """Set the fields that were sent, and no others."""
    with _changing(collection, record_id, body, by) as (access, row):
        return _change(access, row, body, {})


def delete(collection: str, record_id: str, *, by: Principal) -> None:
    """Remove a record, and what `on_delete` says goes with it. Raises Conflict while it is held."""
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "delete")
        cascade.remove(definition, [_within_reach(access, record_id, {})], by=by)


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
    except DBAPIError as error:
        if not db.gave_way(error):
            raise
        raise stamps.Stale from error  # two waited for each other: this one tries again


@contextmanager
def _changing(
    collection: str, record_id: str, body: Body, by: Principal
) -> Iterator[tuple[Access, store.Row]]:
    with _writing(collection, by) as definition:
        access = accesses.of(by, definition, "update")
        yield access, _within_reach(access, record_id, _sent(definition, body))


def _within_reach(access: Access, record_id: str, sent: Body) -> store.Row:
    """A record that the caller may change, locked. Raises NotFound where it is out of sight."""
    definition, by = access.definition, access.caller
    by.one_account()
    row = store.lock_one(definition, store.scope(definition, by.account_id), record_id)
    if row is None:
        raise _missing(access)
    if not _allows(access, row, sent):
        seen = _view_of(definition, row, by) is not None
        raise access.refusal() if seen else _missing(access)
    return row


def _change(access: Access, row: store.Row, sent: Body, absent: Body) -> Shown:
    definition, by = access.definition, access.caller
    accesses.check_written(access, set(sent))
    # What comes back as it was shown masked was not meant as a change.
    body = {n: v for n, v in sent.items() if not _is_masked_view(access, row, n, v)}
    found = _system_problems(body, row)
    values = _clean_fields(definition, {**absent, **body}, found, set(absent))
    found += _reference_problems(definition, values, row["account_id"], by)
    if found:
        raise InvalidValues(found)
    values |= {"updated_at": clock.now(), "updated_by": by.user_id}
    data = _sent(definition, sent)
    with _refusable(access, {**row, **values}, row["id"], data):
        stored = store.update(definition, row, values)
    _check_allowed(access, stored, data)
    cascade.tell(definition, "update", stored, row, by)
    return _viewed(definition, stored, by)


def _is_masked_view(access: Access, row: store.Row, name: str, value: Any) -> bool:
    field = access.definition.fields.get(name)
    if field is None or row[name] is None or not accesses.sees_masked(access.caller, field):
        return False
    return bool(value == masking.masked(field, field.shown(row[name])))


def _check_allowed(access: Access, row: store.Row, sent: Body) -> None:
    if not _allows(access, row, sent):
        raise access.refusal()


def _allows(access: Access, row: store.Row, sent: Body) -> bool:
    if access.condition is None:
        return True
    return access.allows(store.followed(access.definition, [row], access.follows)[0], sent)


def _sent(definition: Definition, body: Body) -> dict[str, Any]:
    """What rules see of a body: the values that its fields take."""
    found = {}
    for name, field in definition.fields.items():
        if body.get(name) is not None:
            with suppress(Refused):
                found[name] = field.clean(body[name])
    return found


def _account_to_write(by: Principal, body: Body) -> str:
    chosen = body.get("account_id")
    if not by.is_superadmin or chosen is None:
        return by.one_account()
    account = principals.account_as_it_is(chosen) if isinstance(chosen, str) else None
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
    accesses.check_written(access, set(body))
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
            if name not in definition.columns:
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
    scoped = store.scope(target, account_id, access.where)
    return store.existing(target, scoped, ids, access.parameters)


class _Clash(Exception):
    """A record that the database refused, with what is needed to say why."""

    def __init__(self, access: Access, values: Body, record_id: str | None, sent: Body) -> None:
        super().__init__()
        self.access, self.values, self.record_id, self.sent = access, values, record_id, sent


@contextmanager
def _refusable(access: Access, values: Body, record_id: str | None, sent: Body) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise _Clash(access, values, record_id, sent) from error


def _explained(clash: _Clash) -> Exception:
    access, error = clash.access, clash.__cause__
    kind = db.violation(error).kind if isinstance(error, IntegrityError) else "other"
    if kind == "foreign_key":
        message = "A record that this one refers to is gone."
        names = [name for name, field in access.definition.fields.items() if field.collection]
        return InvalidValues([problem(name, "invalid_reference", message) for name in names])
    if kind == "not_null":
        # A required field came with a change of the schema between our look and our writing.
        return stamps.Stale()
    if kind != "unique":
        return clash
    led_to = store.foreseen(access.definition, clash.values, access.follows)
    if not access.allows({**clash.values, **led_to}, clash.sent):
        # What others have must not show to whom the rule refuses the record anyway.
        return access.refusal()
    names = store.clashing(access.definition, clash.values, clash.record_id)
    message = "Another record has this value already."
    details = [problem(name, "not_unique", message) for name in names]
    return Conflict(message, field=names[0] if names else None, details=details)


def _viewed(definition: Definition, row: store.Row, by: Principal) -> Shown:
    # Whoever may write but not view learns only that it was done.
    access = _view_of(definition, row, by)
    names = access.readable if access else SYSTEM_FIELDS
    return _shown(row, list(names), access)


def _view_of(definition: Definition, row: store.Row, by: Principal) -> Access | None:
    """What viewing a record opens to the caller; None where it is out of sight."""
    if not accesses.may(by, definition, "view"):
        return None
    access = accesses.of(by, definition, "view")
    return access if _allows(access, row, {}) else None


def _shown(row: store.Row, names: Sequence[str], access: Access | None) -> Shown:
    fields = access.definition.columns if access else SYSTEM_COLUMNS
    shown = {
        name: None if (value := row[name]) is None else fields[name].shown(value) for name in names
    }
    for name in access.masked if access else ():
        if name in shown:
            shown[name] = masking.masked(fields[name], shown[name])
    return shown


def _missing(access: Access) -> Exception:
    """No such record, or none for the caller: whoever might see it once signed in is told so."""
    if not access.caller.signed_in and access.about_caller:
        return Unauthorized()
    return NotFound("There is no such record.")
