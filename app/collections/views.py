"""What views are made of, and how they follow the collections that they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from app.collections import aggregates, definitions, people, renaming, schema
from app.collections.changes import Change
from app.collections.definitions import AGGREGATE, Definition, ViewDefinition, view_columns
from app.collections.fields import (
    SYSTEM_FIELDS,
    TYPES,
    AnyDecimalField,
    ComputedField,
    DecimalField,
    Field,
    ListField,
    MissingField,
)
from app.collections.fields.decimal import MAX_PRECISION
from app.collections.people import People
from app.errors import NotFound, problem
from app.rules import RuleError, Type, condition
from app.types import JSONMapping, JSONObject

PARTS = ("fields", "group_by", "aggregates")
MAX_FIELDS, MAX_KEYS, MAX_AGGREGATES = 100, 8, 50
FURTHEST = 3  # references that a name follows
OWN_OPTIONS = ("index", "search")  # of the field that is read
NO_SUCH_BASE = "Name a collection of records: a view reads no other view."
NOT_AN_AGGREGATE = (
    "is none of count(), count(field), sum(field), avg(field), min(field) and max(field)."
)
TYPES_OF_PEOPLE = {Type.TEXT: "text", Type.BOOLEAN: "boolean"}
Problems = list[JSONObject]


def stated(body: JSONMapping, present: JSONMapping | None = None) -> JSONObject:
    """What a body says of a view, over what is there."""
    empty: JSONObject = {"from": "", "fields": [], "where": None, "group_by": [], "aggregates": []}
    view = {**empty, **(present or {})} | {key: body[key] for key in empty if key in body}
    view["where"] = view["where"] or None
    for key in ("fields", "group_by"):
        view[key] = list(dict.fromkeys(name.strip() for name in view[key]))
    calls = ("".join(call.split()) for call in view["aggregates"])
    view["aggregates"] = list(
        dict.fromkeys(call[: call.find("(")].lower() + call[call.find("(") :] for call in calls)
    )
    return view


def specs(view: JSONMapping, problems: Problems) -> list[JSONObject]:
    """The fields of a view's records; adds the problems of its parts to `problems`."""
    base = _base(view, problems)
    if base is None:
        return []
    is_grouped = bool(view["group_by"] or view["aggregates"])
    system = ("id", "account_id") if is_grouped else SYSTEM_FIELDS
    found = dict[str, JSONObject]()
    kept = len(problems)
    for place in PARTS:
        for text in view[place]:
            spec = _spec(base, place, text, is_grouped, problems)
            if spec is None or (spec["name"] in system and not is_grouped):
                continue
            if place == "group_by" and text in view["fields"]:
                continue
            if spec["name"].lower() in {name.lower() for name in found}:
                message = f"Another column is called {spec['name'][:80]}, too."
                problems.append(problem(place, "name_duplicate", message))
            found.setdefault(spec["name"], spec)
    problems += _limits(view, is_grouped)
    referred = [spec["collection"] for spec in found.values() if spec.get("collection")]
    targets = {name.lower(): name for name in referred}  # as the fields that are read do
    named = [spec for name, spec in found.items() if not (is_grouped and name in SYSTEM_FIELDS)]
    if len(problems) == kept:
        problems += schema.problems(named, targets)
        problems += [
            problem(name, "name_reserved", "This name is reserved for a system field.")
            for name in found.keys() & {*system}
        ]
    return [schema.complete(spec) for spec in found.values()]


def where_problems(view: JSONMapping, texts: Mapping[str, str]) -> Iterator[JSONObject]:
    """The problem of a condition, which may use these fragments."""
    base = _base(view, [])
    if base is not None and view["where"]:
        try:
            condition(view["where"], replace(base.scope, fragments=texts))
        except RuleError as error:
            yield problem("where", "rule_invalid", str(error), position=error.position)


def _base(view: JSONMapping, problems: Problems) -> Definition | None:
    try:
        base = definitions.get(view["from"])
    except NotFound:
        base = None
    if base is None or base.view is not None:
        problems.append(problem("from", "invalid_reference", NO_SUCH_BASE))
        return None
    return base


def _limits(view: JSONMapping, is_grouped: bool) -> Iterator[JSONObject]:
    if not any(view[place] for place in PARTS):
        yield problem("fields", "required", "Name at least one field or aggregate.")
    if is_grouped and len({*view["fields"], *view["group_by"]}) > MAX_KEYS:
        message = f"Records are grouped by at most {MAX_KEYS} fields."
        yield problem("group_by", "too_many_items", message)
    if len(view["fields"]) > MAX_FIELDS:
        yield problem("fields", "too_many_items", f"At most {MAX_FIELDS} fields.")
    if len(view["aggregates"]) > MAX_AGGREGATES:
        yield problem("aggregates", "too_many_items", f"At most {MAX_AGGREGATES} aggregates.")


def _spec(
    base: Definition, place: str, text: str, is_grouped: bool, problems: Problems
) -> JSONObject | None:
    """The field of a column; None with a problem of it."""
    function: str | None = None
    path = text
    if place == "aggregates":
        match = AGGREGATE.fullmatch(text)
        if match is None or (match[2] is None and match[1].lower() != "count"):
            message = f"{text[:80]} {NOT_AN_AGGREGATE}"
            problems.append(problem(place, "invalid_option", message))
            return None
        function, path = str(match[1]).lower(), match[2] or ""
        if not path:
            return {"name": "count", "type": "number", "options": {"integer": True}}
    try:
        owner, field = _resolved(base, tuple(path.split(".")))
    except LookupError as error:
        problems.append(problem(place, "unknown_field", str(error.args[0])))
        return None
    misfit = _misfit(field, function, is_grouped)
    if misfit:
        problems.append(problem(place, "invalid_option", misfit))
        return None
    name = "_".join(([function] if function else []) + path.split("."))
    return {**_of_field(owner, field, function), "name": name}


def _resolved(base: Definition, path: Sequence[str]) -> tuple[Definition | People, Field]:
    """The field that a path leads to, and what has it. Raises LookupError with a message."""
    owner: Definition | People = base
    if len(path) > FURTHEST + 1:
        raise LookupError(f"A name follows at most {FURTHEST} references.")
    for step in path[:-1]:
        field = owner.columns.get(step)
        target = owner.followed(step) if isinstance(owner, Definition) and field else None
        if not field:
            raise LookupError(f"There is no field {'.'.join(path)[:200]}.")
        if target is None:
            raise LookupError(f"{step[:80]} is no reference.")
        if isinstance(field, ListField):
            raise LookupError(f"{step[:80]} is a list: a column has one value.")
        owner = target
    name = path[-1]
    if isinstance(owner, People):
        if name not in people.FIELDS:
            raise LookupError(f"People have no {name[:80]}.")
        return owner, TYPES[TYPES_OF_PEOPLE[people.FIELDS[name]]](name)
    if name not in owner.columns:
        raise LookupError(f"There is no field {'.'.join(path)[:200]}.")
    found: Field = owner.columns[name]
    if isinstance(found, MissingField):
        raise LookupError(found.not_loaded)
    if isinstance(found, ListField) and len(path) > 1:
        raise LookupError(f"{'.'.join(path)[:200]} is a list of another record's.")
    return owner, found


def _misfit(field: Field, function: str | None, is_grouped: bool) -> str | None:
    """What keeps a field from being a column, or from being taken by a function."""
    if function is not None:
        fits = field.like.rule_type in aggregates.TAKEN[function]
        return None if fits else f"There is no {function} of a {field.like.type}."
    if is_grouped and not field.like.filterable:
        return f"A {field.like.type} cannot be grouped by."
    return None


def _of_field(owner: Definition | People, field: Field, function: str | None) -> JSONObject:
    """The definition of a column of a field's values, without its name."""
    if isinstance(owner, People):
        return {"type": field.type}
    is_personal = field.name in owner.personal
    spec: JSONObject = {"pii": is_personal}
    if is_personal:
        is_plain = function in (None, "min", "max") and not isinstance(field, ComputedField)
        spec["mask_type"] = (field.mask_type if is_plain else None) or "full"
    if function in ("count", "sum", "avg"):
        made = aggregates.field_of(function, field.like, field.name)
        return spec | {"type": made.type, "options": _digits(made)}
    if field.name in SYSTEM_FIELDS and field.name not in owner.declared:
        return spec | _of_system_field(owner, field)
    if isinstance(field, ComputedField):
        return spec | {"type": field.like.type}
    options = _digits(field) | {
        key: one for key, one in field.options.items() if key not in OWN_OPTIONS
    }
    multiple = {"multiple": True} if field.multiple else {}
    return spec | {
        "type": field.type,
        "options": options,
        "collection": field.collection,
        "on_delete": field.on_delete,
        **multiple,
    }


def _digits(field: Field) -> JSONObject:
    """The options that tell how many digits decimals show; none: those that they have."""
    if not isinstance(field, DecimalField) or isinstance(field, AnyDecimalField):
        return {}
    return {"precision": MAX_PRECISION, "scale": field.scale}


def _of_system_field(owner: Definition, field: Field) -> JSONObject:
    if field.name == "id":
        return {"type": "reference", "collection": owner.name}
    if field.name in definitions.PERSONS:
        return {"type": "user"}
    return {"type": "text" if field.name == "account_id" else field.like.type}


def after(
    changes: Sequence[Change], problems: Problems, apart: Collection[str] = ()
) -> list[tuple[ViewDefinition, ViewDefinition]]:
    """The views that follow changes of collections, before and after.

    Adds the problems of those that cannot follow. Views with the ids `apart` are left out.
    """
    found = list[tuple[ViewDefinition, ViewDefinition]]()
    before = {one.old.name.lower(): one.old for one in changes}
    resulting = {one.new.name.lower(): one.new for one in changes}
    changed = {one.old.id for one in changes}
    for one in all_views():
        if one.id in apart:
            continue
        with definitions.override(before):
            new = _followed(one, changes)
            is_read = not changed.isdisjoint([one.base.id, *(t.id for t in one.targets.values())])
        own: Problems = []
        with definitions.override(resulting):
            if is_read:
                new = replace(new, schema=tuple(specs(new.view, own)))
            if is_read or "@" in (new.view["where"] or ""):
                own += where_problems(new.view, one.fragments)
        problems += [{**each, "field": f"{one.name}.{each['field']}"} for each in own]
        if not own and (new.view, new.schema, new.rules) != (one.view, one.schema, one.rules):
            found.append((one, new))
    return found


def _followed(view: ViewDefinition, changes: Sequence[Change]) -> ViewDefinition:
    """The view with the new names of collections and fields, and of its columns."""
    body, new, base = dict(view.view), view, view.base
    renames = {one.old.id: one.renames for one in changes}
    for one in changes:
        old, names, name = one.old, one.renames, one.new.name
        if base.id == old.id:
            body["from"] = name
        if body["where"]:
            body["where"] = renaming.rewritten(body["where"], base, old, names, name)
        new = replace(new, rules=renaming.rules(new, old, names, name))
        new = replace(new, schema=renaming.referring(new, {old.name.lower(): name}))
    for key in ("fields", "group_by"):
        body[key] = [_renamed(path, base, renames) for path in body[key]]
    calls = (call.partition("(") for call in body["aggregates"])
    body["aggregates"] = [
        f"{function}({_renamed(path.rstrip(')'), base, renames)})" for function, _, path in calls
    ]
    columns = column_renames(view.view, body)
    return replace(renaming.renamed(new, columns) if columns else new, view=body)


def column_renames(before: JSONMapping, after: JSONMapping) -> dict[str, str]:
    """The new names of a view's columns, which are the same ones."""
    pairs = zip(view_columns(before), view_columns(after), strict=True)
    return {old.name: new.name for old, new in pairs if old.name != new.name}


def _renamed(path: str, base: Definition, renames: Mapping[str, Mapping[str, str]]) -> str:
    current: Definition | People | None = base
    names = []
    for step in path.split(".") if path else ():
        own = renames.get(current.id, {}) if current is not None else {}
        names.append(own.get(step, step))
        current = current.followed(step) if isinstance(current, Definition) else None
    return ".".join(names)


def all_views() -> list[ViewDefinition]:
    """All views, without what was cached of them."""
    every = definitions.get_all(with_views=True)
    return [replace(one) for one in every if isinstance(one, ViewDefinition)]
