"""Creates and finds collections, and sets their rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from app import clock, db, jobs, rules
from app.auth.principal import Principal
from app.collections import (
    access,
    changes,
    definitions,
    expression_names,
    fragments,
    indexes,
    revisions,
    schema,
    table,
    totals,
    trash,
)
from app.collections.definitions import ALL_FIELDS, FIELD_LISTS, Definition
from app.collections.fields import TYPES
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues, Malformed, NotFound, problem
from app.ids import new_id
from app.rules import OPERATIONS
from app.types import JSONMapping, JSONObject
from app.web import serialization
from app.web.app import UuidPath

MAX_COUNTED = 100  # per statement; SQLite's limit is 500
RULES = tuple(f"{operation}_rule" for operation in OPERATIONS)
LISTS = tuple(f"{operation}_fields" for operation in FIELD_LISTS)
SORTABLE: JSONMapping = {
    "name": Collection.name_key,
    "created_at": Collection.created_at,
    "updated_at": Collection.updated_at,
}
WRITES = ("create", "update", "delete")
READ_ONLY = "The records of a view are only read."
# The operations of each part of the permission structure.
STRUCTURE = {
    "create": ("create",),
    "read": ("list", "view"),
    "update": ("update",),
    "delete": ("delete",),
}


@table.schema_change
@versioned_cache.reloading()  # for referenced collections
def create(name: str, specs: Sequence[schema.Spec], rules_: JSONMapping) -> Collection:
    """Create a collection with its table. Raises InvalidValues, or Conflict for a taken name."""
    names_by_key = targets() | {name.lower(): name}
    index_specs = rules_.get("indexes", ())
    problems = [*schema.name_problems(name), *schema.problems(specs, names_by_key, index_specs)]
    problems += trash.name_problems(specs, rules_.get("options", {}))
    row = new(name, specs, names_by_key, () if problems else index_specs)
    if not problems:
        problems += expression_names.field_problems(specs, definitions.from_row(row), {})
    row.rules = {**row.rules, **normalize_rules(rules_, definitions.from_row(row), problems)}
    row.fragments = fragments.used(row.rules)
    row.options = changes.merged({}, rules_.get("options", {}))
    if problems:
        raise InvalidValues(problems)
    session = db.db.session
    conflict = ("name", "This name is taken.")
    with (
        errors.conflict_on_unique("collections", "name_key", *conflict),
        errors.conflict_on_unique("collections", "table_name", *conflict),
    ):
        session.add(row)
        session.flush()
    table_ = definitions.from_row(row).table
    statements = table.creation(table_)
    table.make(table_, statements)
    totals.ensure(table_, row.id)
    revisions.record(row.id, f"create collection {name}", statements)
    return row


def new(
    name: str,
    specs: Sequence[schema.Spec],
    names_by_key: Mapping[str, str],
    index_specs: Sequence[indexes.Spec] = (),
) -> Collection:
    """Build a closed collection without storing it; skips fields of unknown types."""
    now = clock.now()
    return Collection(
        name=name,
        name_key=name.lower(),
        table_name=table.table_name_for(name),
        schema=[stored(spec, names_by_key) for spec in specs if spec["type"] in TYPES],
        rules=dict.fromkeys(RULES) | dict.fromkeys(LISTS, ALL_FIELDS),
        options={},
        indexes=[indexes.stored(spec) for spec in index_specs],
        id=new_id(),
        version=1,
        created_at=now,
        updated_at=now,
    )


def find(reference: str) -> Collection:
    """Find a collection by id or name. Raises NotFound."""
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
    """A page of collections, by name by default, and the total."""
    matches = Collection.name_key.contains((search or "").lower(), autoescape=True)
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Collection).where(matches))
    column = SORTABLE[sort_by]
    ordered = column.asc() if sort_order == "asc" else column.desc()
    query = sa.select(Collection).where(matches).order_by(ordered, Collection.name_key)
    return list(db.db.session.scalars(query.offset(skip).limit(limit))), total or 0


def names(*, with_views: bool = True) -> list[str]:
    """The names of all collections."""
    query = sa.select(Collection.name).order_by(Collection.name_key)
    query = query if with_views else query.where(Collection.view.is_(None))
    return list(db.db.session.scalars(query))


def open_to(caller: Principal) -> list[JSONObject]:
    """Return the collections with an operation open to the caller, with their readable fields."""
    views: list[JSONObject] = []
    for row in db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key)):
        collection = definitions.from_row(row)
        opened = {one: access.if_open(caller, collection, one) for one in OPERATIONS}
        if any(opened.values()):
            readable: set[str] = set()
            for one in (opened["list"], opened["view"]):
                readable |= one.readable.keys() if one else set()
            fields = [spec for spec in collection.schema if spec["name"] in readable]
            views.append({"id": row.id, "name": row.name, "schema": fields, "fields": fields})
    return views


def record_counts(rows: Sequence[Collection], max_count: int | None = None) -> dict[str, int]:
    """The number of records in each collection over all accounts, by id; 0 for views.

    Stops at `max_count` + 1.
    """
    views = {row.id: 0 for row in rows if row.view is not None}
    known = totals.by_collection([row.id for row in rows]) | views
    if max_count is not None:
        known = {id: min(count, max_count + 1) for id, count in known.items()}
    return known | _count([row for row in rows if row.id not in known], max_count)


def _count(rows: Sequence[Collection], max_count: int | None) -> dict[str, int]:
    """Count collections that have no records, or no triggers that count them."""
    if len(rows) > MAX_COUNTED:
        first, rest = rows[:MAX_COUNTED], rows[MAX_COUNTED:]
        return _count(first, max_count) | _count(rest, max_count)
    single = sa.select(sa.literal(1).label("one")).limit(
        None if max_count is None else max_count + 1
    )
    subqueries = {row.id: single.select_from(sa.table(row.table_name)).subquery() for row in rows}
    counts = [
        sa.select(sa.literal(id), sa.func.count()).select_from(subquery)
        for id, subquery in subqueries.items()
    ]
    try:
        rows_ = db.connection().execute(sa.union_all(*counts)) if counts else ()
        return {row_id: count for row_id, count in rows_}  # noqa: C416 - rows are no pairs to mypy
    except DBAPIError as error:
        if not errors.is_stale_schema(error):
            raise
    # One was deleted concurrently: bisect to find it.
    if len(rows) == 1:
        return {rows[0].id: 0}
    half = len(rows) // 2
    return _count(rows[:half], max_count) | _count(rows[half:], max_count)


def ensure_totals() -> None:
    """Have the database count the records of collections that an older release created."""
    for id in db.db.session.scalars(sa.select(Collection.id)).all():
        _ensure_total(id)


@table.schema_change
def _ensure_total(collection_id: str) -> None:
    columns = (Collection.id, Collection.table_name)
    row = db.connection().execute(sa.select(*columns).where(Collection.id == collection_id)).first()
    # By the table, as a migration may end before there are views.
    if row is not None and sa.inspect(db.connection()).has_table(row.table_name):
        totals.ensure(table.build_table(row.table_name, ()), row.id)


@jobs.job(totals.MEASURE)
def measure(payload: JSONMapping) -> None:
    """Measure the rows of a collection again, as a changed schema changes their size."""
    same = Collection.id == payload["collection_id"]
    with db.transaction() as session:
        name = session.scalar(sa.select(Collection.table_name).where(same))
        if name is not None:
            totals.measure(table.build_table(name, ()), payload["collection_id"])


@table.schema_change
@versioned_cache.reloading()  # for referenced collections
def change_rules(
    reference: str, changes: JSONMapping, *, expected_version: str | None = None
) -> Collection:
    """Change the given rules and field lists.

    Raises InvalidValues, or Conflict if the version is not `expected_version`.
    """
    row = locked(find(reference).id)
    check_version(row, expected_version)
    problems: list[JSONObject] = []
    if (name := changes.get("collection")) is not None and name.lower() != row.name_key:
        message = "Rules cannot rename their collection."
        problems.append(problem("collection", "name_invalid", message))
    new_rules = normalize_rules(changes, definitions.from_row(row), problems)
    if problems:
        raise InvalidValues(problems)
    row.rules = {**row.rules, **new_rules}
    row.fragments = fragments.used_by(row)
    row.version += 1
    db.db.session.flush()
    return row


def proposed_rules(reference: str, changes: JSONMapping) -> tuple[Definition, Definition]:
    """A collection's present definition, and one with other rules. Raises InvalidValues."""
    present = definitions.get(find(reference).name)
    problems: list[JSONObject] = []
    new_rules = normalize_rules(changes, present, problems)
    if problems:
        raise InvalidValues(problems)
    proposed = replace(present, rules={**present.rules, **new_rules})
    return present, fragments.with_current(proposed)


def rules_view(row: Collection) -> JSONObject:
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


def normalize_rules(
    sent_rules: JSONMapping, collection: Definition, problems: list[JSONObject]
) -> JSONObject:
    """Return rules and field lists in flat form; adds problems to `problems`."""
    # With an invalid schema, only the syntax and the roles of rules can be checked.
    is_form = bool(problems)
    of = None if problems else collection
    flat: JSONObject = {}
    for part, operations in STRUCTURE.items():
        for key, value in (sent_rules.get(part) or {}).items():
            suffix = "rule" if key == "rule" else "fields"
            if part == "delete" and suffix == "fields":
                if value != ALL_FIELDS:
                    message = "delete has no field list."
                    problems.append(problem("delete.fields", "invalid_option", message))
                continue
            flat |= {f"{operation}_{suffix}": value for operation in operations}
    # The flat form takes precedence.
    flat |= {key: sent_rules[key] for key in (*RULES, *LISTS) if key in sent_rules}
    for key in flat.keys() & {*LISTS}:
        flat[key] = _field_list(key, flat[key], list(collection.columns), problems)
    if collection.view is not None:
        problems += [
            problem(key, "invalid_option", READ_ONLY)
            for key, value in flat.items()
            if key.partition("_")[0] in WRITES and value not in (None, ALL_FIELDS)
        ]
    resulting = fragments.with_current(replace(collection, rules={**collection.rules, **flat}))
    stored = collection.rules.get("update_rule") or ""
    looks_back = any(word in stored for word in ("@old", "@changed", "@rule"))
    if "update_fields" in flat and looks_back:
        flat.setdefault("update_rule", stored)  # what may be written decides what it may compare
    for key in RULES:
        if flat.get(key) is not None:
            try:
                scope = resulting.rule_scope(key)
            except rules.RuleError:  # of a computed field, which `problems` has
                break
            scope = replace(rules.ANYTHING, fragments=scope.fragments) if is_form else scope
            invalid = access.rule_problem(flat[key], scope)
            invalid = invalid or expression_names.problem_in(
                flat[key], of, collection.rules.get(key)
            )
            problems += [invalid | {"field": key}] if invalid else []
    return flat


def _field_list(
    key: str, value: object, names: Sequence[str], problems: list[JSONObject]
) -> object:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = serialization.parse(value.encode())
        except Malformed:
            value = None
    if value == ALL_FIELDS:
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        message = 'A field list is "*" or an array of field names.'
        problems.append(problem(key, "invalid_type", message))
        return ALL_FIELDS
    unknown = [name for name in value if name not in names]
    problems += [
        problem(key, "unknown_field", f"There is no field {name[:80]}.") for name in unknown
    ]
    return list(dict.fromkeys(value))


def locked(collection_id: str) -> Collection:
    """Lock a collection until the transaction ends. Raises NotFound."""
    query = sa.select(Collection).where(Collection.id == collection_id.lower()).with_for_update()
    row = db.db.session.scalar(query.execution_options(populate_existing=True))
    if row is None:
        raise NotFound("There is no such collection.")
    return row


def check_version(row: Collection, expected_version: str | None) -> None:
    """Refuse a change that was based on another version. Raises Conflict."""
    if expected_version is not None and expected_version != str(row.version):
        message = "This collection was changed meanwhile. Preview the effect again."
        raise Conflict(message)


def targets() -> dict[str, str]:
    """The names of all collections by name key, as targets of references."""
    return {name.lower(): name for name in names(with_views=False)}


def stored(spec: schema.Spec, targets: Mapping[str, str]) -> JSONObject:
    """A field definition as stored."""
    complete_spec = schema.complete(spec)
    if complete_spec["collection"]:
        complete_spec["collection"] = targets.get(
            complete_spec["collection"].lower(), complete_spec["collection"]
        )
    return complete_spec
