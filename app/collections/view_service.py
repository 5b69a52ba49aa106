"""Creates and changes views, and says what a change would do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import orjson

from app import clock, db, events, rules
from app.collections import (
    definitions,
    expression_names,
    fragments,
    renaming,
    schema,
    table,
    totals,
    views,
)
from app.collections import service as collections
from app.collections.changes import Operation
from app.collections.definitions import ALL_FIELDS, Definition, ViewDefinition
from app.collections.models import Collection
from app.db import errors, versioned_cache
from app.errors import Conflict, InvalidValues, problem
from app.ids import new_id
from app.types import JSONMapping, JSONObject

NAME_TAKEN = "This name is taken."
PLAN_STALE = "The view was changed after this plan, or the plan is of another change."
KIND_STAYS = "A collection of records stays one, and so does a view."
OF_RECORDS = ("schema", "indexes", "options", "remove_fields", "field_order")
PARTS = ("from", "fields", "where", "group_by", "aggregates")
MANY = 10_000
"""Records of an account from which on a view without an index is slow."""
SLOW_GROUPS = "{} groups all {} records of {}, as many as an account has: narrow `where` by {} =."
SLOW_FILTER = "`where` reads all {} records of {}, as many as an account has: compare {} by =."
SLOW_COLUMNS = (
    "Lists that filter or sort by {} read all {} records of {}: index these fields there."
)
SLOW_JOINED = (
    "Lists that filter or sort by {} read all {} records of {}, as no index reaches behind"
    " references: narrow `where` by {} =, or have the value in a field of {}, too."
)
AN_INDEXED = "a field that an index begins with"


def is_meant(collection_id: str, body: JSONObject) -> bool:
    """Whether a body is about a view, as its collection is one; takes `type` from the body.

    Raises NotFound, and InvalidValues for what the collection does not have.
    """
    row, kind = collections.find(collection_id), body.pop("type", None)
    is_view = row.view is not None
    if kind not in (None, "view" if is_view else "base"):
        raise InvalidValues([problem("type", "type_change_not_allowed", KIND_STAYS)])
    if is_view:
        refuse(body, OF_RECORDS, "A view does not have this.")
    else:
        refuse_parts(body)
    return is_view


def refuse_parts(body: JSONMapping) -> None:
    """Raise InvalidValues for parts of views, in the body of a collection of records."""
    refuse(body, PARTS, "Only a view has this.")


def refuse(body: JSONMapping, names: Sequence[str], message: str) -> None:
    """Raise InvalidValues for these names."""
    found = [problem(name, "invalid_option", message) for name in names if name in body]
    if found:
        raise InvalidValues(found)


@table.schema_change
@versioned_cache.reloading()  # for what it reads
def create(name: str, body: JSONMapping) -> Collection:
    """Create a view. Raises InvalidValues, or Conflict for a taken name."""
    refuse(body, OF_RECORDS, "A view does not have this.")
    problems = schema.name_problems(name)
    row = new(name, body, problems)
    if problems:
        raise InvalidValues(problems)
    _store(row)
    return row


def new(name: str, body: JSONMapping, problems: list[JSONObject]) -> Collection:
    """A view that is not stored; adds problems of it and its rules to `problems`."""
    now, view = clock.now(), views.stated(body)
    specs = views.specs(view, problems)
    problems += views.where_problems(view, fragments.load())
    row = Collection(
        name=name,
        name_key=name.lower(),
        table_name=table.table_name_for(name),
        schema=specs,
        rules=dict.fromkeys(collections.RULES) | dict.fromkeys(collections.LISTS, ALL_FIELDS),
        options={},
        indexes=[],
        id=new_id(),
        version=1,
        created_at=now,
        updated_at=now,
        view=view | ({} if problems else {"from": definitions.get(view["from"]).name}),
    )
    row.rules = {**row.rules, **_rules(body, definitions.from_row(row), problems)}
    row.fragments = fragments.used_by(row)
    return row


def _rules(body: JSONMapping, of: Definition, problems: list[JSONObject]) -> JSONObject:
    found = collections.normalize_rules(body, of, problems)
    if of.view and of.view["where"] and not problems:
        named = expression_names.problem_in(of.view["where"], definitions.get(of.view["from"]))
        problems += [named | {"field": "where"}] if named else []
    return found


def _store(row: Collection) -> None:
    session = db.db.session
    with (
        errors.conflict_on_unique("collections", "name_key", "name", NAME_TAKEN),
        errors.conflict_on_unique("collections", "table_name", "name", NAME_TAKEN),
    ):
        session.add(row)
        session.flush()


def changed(
    row: Collection, body: JSONMapping, problems: list[JSONObject], *, partial: bool
) -> ViewDefinition:
    """The view as a body changes it; adds problems to `problems`."""
    old = definitions.from_row(row)
    if not isinstance(old, ViewDefinition):
        raise LookupError(f"{row.name} is no view")
    kept = old.view if partial or not body.keys() & {*PARTS} else {"from": old.view["from"]}
    view = views.stated(body, kept)
    name = body.get("name") or old.name
    if name.lower() == old.name.lower():
        name = old.name
    else:
        problems += schema.name_problems(name)
    specs = tuple(views.specs(view, problems))
    if old.view["where"] != view["where"]:
        problems += views.where_problems(view, fragments.load())
    new = renaming.renamed(old, {}, name)
    names = {spec["name"] for spec in specs} | {*old.system}
    rules = {
        key: [one for one in value if one in names] if isinstance(value, list) else value
        for key, value in new.rules.items()
    }
    new = replace(new, schema=specs, view=view, rules=rules)
    stated = {key: new.rules[key] for key in collections.RULES} | dict(body)
    normal = _rules(stated, new, problems)
    new = replace(new, rules={**new.rules, **normal})
    gone = frozenset(old.declared.keys() - new.declared.keys())
    if gone and not problems:
        events.publish(events.FieldNamesEnd(old, gone, problems))
    if name != old.name and not problems:
        events.publish(events.CollectionNameEnds(old.name, problems))
    return new


@table.schema_change
@versioned_cache.reloading()  # for what it reads
def update(collection_id: str, body: JSONMapping, *, partial: bool) -> Collection:
    """Change a view, its name or its rules. Raises InvalidValues, NotFound, or Conflict."""
    row = collections.locked(collection_id)
    problems: list[JSONObject] = []
    new = changed(row, body, problems, partial=partial)
    if problems:
        raise InvalidValues(problems)
    if body.get("plan_hash") not in (None, _hash(row, new)):
        raise Conflict(PLAN_STALE, error="plan_stale")
    if new.name != row.name and new.name.lower() in map(str.lower, collections.names()):
        raise Conflict(NAME_TAKEN, field="name")
    store(row, new)
    return row


def store(row: Collection, new: ViewDefinition) -> None:
    """Store a changed view."""
    old = definitions.from_row(row)
    specs = [dict(spec) for spec in new.schema]
    if (new.name, specs, dict(new.view), new.rules) == (row.name, row.schema, row.view, row.rules):
        return
    row.name, row.name_key, row.table_name = new.name, new.name.lower(), new.table_name
    row.schema, row.view, row.rules = specs, dict(new.view), dict(new.rules)
    row.fragments = fragments.used_by(row)
    row.version += 1
    with errors.conflict_on_unique("collections", "name_key", "name", NAME_TAKEN):
        db.db.session.flush()
    if new.name != old.name:
        events.publish(events.CollectionRenamed(old.name, new.name))


def follow(pairs: Sequence[tuple[ViewDefinition, ViewDefinition]]) -> None:
    """Store views that follow what they read."""
    for old, new in pairs:
        row = collections.locked(new.id)
        collections.check_version(row, str(old.version))
        columns = views.column_renames(old.view, new.view)
        store(row, new)
        if columns:
            events.publish(events.FieldsRenamed(old, columns, frozenset()))


@versioned_cache.reloading()  # for what it reads
def plan(collection_id: str, body: JSONMapping) -> JSONObject:
    """What a change of a view would do, as `updates.plan` says it. Changes nothing."""
    row = collections.find(collection_id)
    problems: list[JSONObject] = []
    new = changed(row, body, problems, partial=True)
    if problems:
        raise InvalidValues(problems)
    old = definitions.from_row(row)
    before = {"name": old.name, **(old.view or {})}
    after = {"name": new.name, **new.view}
    operations = [
        {"operation": Operation.CHANGE_VIEW, "field": None, "property": key}
        | {"before": before[key], "after": value}
        for key, value in after.items()
        if before[key] != value
    ]
    reverse = {key: before[key] for key in after if before[key] != after[key]}
    return {
        "operations": operations,
        "sql": [],
        "problems": [],
        "plan_hash": _hash(row, new),
        "reverse": {"indexes": [], **reverse},
        "data_lost": [],
        "warnings": warnings(new),
    }


def _hash(row: Collection, new: ViewDefinition) -> str:
    text = orjson.dumps([new.name, new.view, new.schema], option=orjson.OPT_SORT_KEYS)
    return f"{row.version}-{hashlib.sha256(text).hexdigest()}"


def warnings(view: ViewDefinition) -> list[str]:
    """Where a view, or a list of it, would read all records of a large collection."""
    base = view.base
    most = max((number for *_, number in totals.by_account(base.id, 1)), default=0)
    if most < MANY:
        return []
    served = {*base.leading, "id", "created_at"}
    if view.narrowed and rules.fixed_fields(view.narrowed) & (served - {"created_at"}):
        return []
    number, leading = f"{most:,}", ", ".join(sorted(base.leading)) or AN_INDEXED
    if view.is_grouped:
        return [SLOW_GROUPS.format(view.name, number, base.name, leading)]
    columns = [one for one in view.read_columns if view.declared[one.name].like.filterable]
    own = [one.name for one in columns if len(one.path) == 1 and one.name not in served]
    joined = [one.name for one in columns if len(one.path) > 1]
    found = [SLOW_FILTER.format(number, base.name, leading)] if view.view["where"] else []
    if own := [name for name in own if name in base.fields]:
        found.append(SLOW_COLUMNS.format(", ".join(own), number, base.name))
    if joined:
        names = ", ".join(joined)
        found.append(SLOW_JOINED.format(names, number, base.name, leading, base.name))
    return found
