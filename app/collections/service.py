"""Collections: made, found, dropped, and given rules (spec 4.3, contract sections 4 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from app import clock, db, rules
from app.auth.principal import Principal
from app.collections import access, definition, revisions, schema, table
from app.collections.definition import ALL_FIELDS, FIELD_LISTS, Definition
from app.collections.fields import TYPES
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues, Malformed, NotFound, Unavailable, problem
from app.ids import new_id
from app.rest import json_input
from app.rest.converters import UuidPath
from app.rules import OPERATIONS
from app.types import JSONMapping, JSONObject

View = TypeVar("View", bound=Callable[..., Any])
TRIES = 20
COUNTED_TOGETHER = 100  # collections in one statement, of which SQLite takes 500
RULES = tuple(f"{operation}_rule" for operation in OPERATIONS)
LISTS = tuple(f"{operation}_fields" for operation in FIELD_LISTS)
SORTABLE: JSONMapping = {
    "name": Collection.name_key,
    "created_at": Collection.created_at,
    "updated_at": Collection.updated_at,
}
# Which operations each part of the permission structure (spec section 2) stands for.
STRUCTURE = {
    "create": ("create",),
    "read": ("list", "view"),
    "update": ("update",),
    "delete": ("delete",),
}


def schema_change(change: View) -> View:
    """Try a change of the schema again when it had to give way to reads and writes."""

    @wraps(change)
    def run(*args: object, **options: object) -> object:
        for _ in range(TRIES):
            try:
                with db.transaction(changes_schema=True):
                    return change(*args, **options)
            except DBAPIError as error:
                if not errors.was_lock_conflict(error):
                    raise
        raise Unavailable("The collection is too busy to be changed. Try again in a moment.")

    return run  # type: ignore[return-value]


@schema_change
@versioned_cache.reloading()  # for the collections that rules lead to
def create(name: str, specs: Sequence[schema.Spec], given: JSONMapping) -> Collection:
    """Make a collection with its table. Raises InvalidValues, or Conflict for a taken name."""
    known = targets() | {name.lower(): name}
    found = [*schema.name_problems(name), *schema.problems(specs, known)]
    row = new(name, specs, known)
    row.rules = {**row.rules, **settle_rules(given, definition.from_row(row), found)}
    row.options = dict(given.get("options", {}))
    if found:
        raise InvalidValues(found)
    session = db.db.session
    taken = ("name", "This name is taken.")
    with (
        errors.conflict_on_unique("collections", "name_key", *taken),
        errors.conflict_on_unique("collections", "table_name", *taken),
    ):
        session.add(row)
        session.flush()
    made = definition.from_row(row).table
    statements = table.creation(made)
    table.make(made, statements)
    revisions.record(row.id, f"create collection {name}", statements)
    return row


def new(name: str, specs: Sequence[schema.Spec], known: Mapping[str, str]) -> Collection:
    """A closed collection that is not stored yet; fields of unknown types are left out."""
    now = clock.now()
    return Collection(
        name=name,
        name_key=name.lower(),
        table_name=table.name_of(name),
        schema=[stored(spec, known) for spec in specs if spec["type"] in TYPES],
        rules=dict.fromkeys(RULES) | dict.fromkeys(LISTS, ALL_FIELDS),
        options={},
        id=new_id(),
        version=1,
        created_at=now,
        updated_at=now,
    )


def find(reference: str) -> Collection:
    """The collection with that id or name. Raises NotFound."""
    is_id = UuidPath.accepts(reference)
    column = Collection.id if is_id else Collection.name_key
    row = db.db.session.scalar(sa.select(Collection).where(column == reference.lower()))
    if row is None:
        raise NotFound("There is no such collection.")
    return row


def page(
    skip: int,
    limit: int,
    search: str | None = None,
    sort_by: str = "name",
    sort_order: str = "asc",
) -> tuple[list[Collection], int]:
    """Collections, by name unless asked otherwise, and how many there are."""
    which = Collection.name_key.contains((search or "").lower(), autoescape=True)
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Collection).where(which))
    column = SORTABLE[sort_by]
    ordered = column.asc() if sort_order == "asc" else column.desc()
    chosen = sa.select(Collection).where(which).order_by(ordered, Collection.name_key)
    return list(db.db.session.scalars(chosen.offset(skip).limit(limit))), total or 0


def names() -> list[str]:
    """The names of all collections."""
    return list(db.db.session.scalars(sa.select(Collection.name).order_by(Collection.name_key)))


def open_to(caller: Principal) -> list[JSONObject]:
    """Every collection of which some operation is open to the caller, with what may be read."""
    rows = db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key))
    return [
        {"id": row.id, "name": row.name, "schema": readable, "fields": readable}
        for row, readable in ((row, _readable(caller, definition.from_row(row))) for row in rows)
        if readable is not None
    ]


def _readable(caller: Principal, collection: Definition) -> list[JSONMapping] | None:
    opened = [one for one in OPERATIONS if access.is_open(caller, collection, one)]
    seen: set[str] = set()
    for operation in set(opened) & {"list", "view"}:
        seen |= access.for_operation(caller, collection, operation).readable.keys()
    return [spec for spec in collection.schema if spec["name"] in seen] if opened else None


def record_counts(rows: Sequence[Collection], most: int | None = None) -> dict[str, int]:
    """How many records, of all accounts, each collection has; by its id, many in one statement.

    Where there are more than `most`, the number is one beyond it.
    """
    if len(rows) > COUNTED_TOGETHER:
        first, rest = rows[:COUNTED_TOGETHER], rows[COUNTED_TOGETHER:]
        return record_counts(first, most) | record_counts(rest, most)
    one = sa.select(sa.literal(1).label("one")).limit(None if most is None else most + 1)
    some = {row.id: one.select_from(sa.table(row.table_name)).subquery() for row in rows}
    counts = [
        sa.select(sa.literal(id), sa.func.count()).select_from(part) for id, part in some.items()
    ]
    try:
        found = db.connection().execute(sa.union_all(*counts)) if counts else ()
        return {row_id: count for row_id, count in found}  # noqa: C416 - rows are no pairs to mypy
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
    # One of them was deleted meanwhile; which one, only asking for fewer tells.
    if len(rows) == 1:
        return {rows[0].id: 0}
    half = len(rows) // 2
    return record_counts(rows[:half], most) | record_counts(rows[half:], most)


@versioned_cache.reloading()  # for the collections that rules lead to
def change_rules(reference: str, changes: JSONMapping, *, seen: str | None = None) -> Collection:
    """Change the rules and field lists that are named, and keep the rest.

    `seen` is the version that the changes were made from, if that matters. Raises InvalidValues,
    or Conflict where the collection has changed since.
    """
    with db.transaction() as session:
        row = locked(find(reference).id)
        check_seen(row, seen)
        found = renaming(row, "collection", changes.get("collection"))
        settled = settle_rules(changes, definition.from_row(row), found)
        if found:
            raise InvalidValues(found)
        row.rules = {**row.rules, **settled}
        row.version += 1
        session.flush()
        return row


def proposed_rules(reference: str, changes: JSONMapping) -> tuple[Definition, Definition]:
    """A collection as it is, and as it would be with other rules. Raises InvalidValues."""
    present = definition.get(find(reference).name)
    found: list[JSONObject] = []
    settled = settle_rules(changes, present, found)
    if found:
        raise InvalidValues(found)
    return present, replace(present, rules={**present.rules, **settled})


def rules_of(row: Collection) -> JSONObject:
    """A collection's rules, flat and as the permission structure."""
    flat = {key: row.rules[key] for key in (*RULES, *LISTS)}
    structure = {
        part: {
            "rule": row.rules[f"{operations[-1]}_rule"],
            "fields": row.rules.get(f"{operations[-1]}_fields", ALL_FIELDS),
        }
        for part, operations in STRUCTURE.items()
    }
    return {"collection": row.name, **flat, **structure}


def settle_rules(given: JSONMapping, collection: Definition, found: list[JSONObject]) -> JSONObject:
    """Rules and field lists in their flat form; what is wrong with them goes to `found`."""
    # While the schema is no good, a rule can only be judged by its form.
    scope = rules.Scope({}, open=True) if found else collection.scope
    flat: JSONObject = {}
    for part, operations in STRUCTURE.items():
        for key, value in (given.get(part) or {}).items():
            suffix = "rule" if key == "rule" else "fields"
            if part == "delete" and suffix == "fields":
                if value != ALL_FIELDS:
                    message = "Deleting has no fields to choose."
                    found.append(problem("delete.fields", "invalid_option", message))
                continue
            flat |= {f"{operation}_{suffix}": value for operation in operations}
    # Where both forms name a thing, the flat one is the more precise.
    flat |= {key: given[key] for key in (*RULES, *LISTS) if key in given}
    for key in flat:
        if key in LISTS:
            flat[key] = _field_list(key, flat[key], list(collection.columns), found)
        elif flat[key] is not None and (wrong := access.rule_problem(flat[key], scope)):
            found.append(wrong | {"field": key})
    return flat


def _field_list(key: str, value: object, names: Sequence[str], found: list[JSONObject]) -> object:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json_input.loads(value.encode())
        except Malformed:
            value = None
    if value == ALL_FIELDS:
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        message = 'A field list is "*" or an array of field names.'
        found.append(problem(key, "invalid_type", message))
        return ALL_FIELDS
    unknown = [name for name in value if name not in names]
    found += [problem(key, "unknown_field", f"There is no field {name[:80]}.") for name in unknown]
    return list(dict.fromkeys(value))


def locked(collection_id: str) -> Collection:
    """The collection, kept from other changes until the transaction ends. Raises NotFound."""
    locked = sa.select(Collection).where(Collection.id == collection_id.lower()).with_for_update()
    row = db.db.session.scalar(locked.execution_options(populate_existing=True))
    if row is None:
        raise NotFound("There is no such collection.")
    return row


def check_seen(row: Collection, seen: str | None) -> None:
    """Refuse to change what is not as it was when the change was made up. Raises Conflict."""
    if seen is not None and seen != str(row.version):
        message = "Somebody else has changed this collection meanwhile. Preview the effect anew."
        raise Conflict(message)


def renaming(row: Collection, place: str, name: str | None) -> list[JSONObject]:
    """Why a change may not name the collection so."""
    if name is None or name.lower() == row.name_key:
        return []
    return [problem(place, "name_invalid", "A collection cannot be renamed.")]


def targets() -> dict[str, str]:
    """The names that references may name, by the form in which they are compared."""
    return {name.lower(): name for name in names()}


def stored(spec: schema.Spec, targets: Mapping[str, str]) -> JSONObject:
    """A field definition as it is kept."""
    full = schema.complete(spec)
    if full["collection"]:
        full["collection"] = targets.get(full["collection"].lower(), full["collection"])
    return full
