"""Is a schema one that we can keep? Every problem of every field, all at once (contract 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from app.collections import masking, table
from app.collections.definition import Definition, computed_node, parse_field
from app.collections.fields import (
    RETURN_TYPES,
    SYSTEM_FIELDS,
    TYPES,
    ComputedField,
    InvalidValue,
    ReferenceField,
)
from app.errors import problem
from app.rules import RuleError
from app.types import JSONMapping, JSONObject

COLLECTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,55}")
FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
RESERVED_COLLECTIONS = {"names", "export", "import", "batch", "aggregate", "rules", "plan"}
RESERVED_FIELDS = set(SYSTEM_FIELDS) | table.DATABASE_COLUMNS
LONGEST_SCHEMA = 200
ON_DELETE = ("restrict", "cascade", "set_null")
DEFAULTS: JSONMapping = {
    "required": False,
    "default": None,
    "unique": False,
    "options": {},
    "collection": None,
    "on_delete": None,
    "pii": False,
    "mask_type": None,
    "expression": None,
    "return_type": None,
}

Problem = JSONObject
Spec = JSONMapping


def complete(spec: Spec) -> JSONObject:
    """A field definition with every property, as it is stored and answered."""
    full = {"name": spec["name"], "type": spec["type"], **DEFAULTS, **spec}
    if full["type"] == "reference":
        full["on_delete"] = full["on_delete"] or "restrict"
    if full["pii"]:
        full["mask_type"] = full["mask_type"] or "full"
    return full


def name_problems(name: str) -> list[Problem]:
    """Why a text is no name for a collection."""
    if not COLLECTION_NAME.fullmatch(name):
        message = "A name has 3 to 56 letters, digits and underscores, a letter first."
        return [problem("name", "name_invalid", message)]
    if name.lower() in RESERVED_COLLECTIONS:
        return [problem("name", "name_reserved", "This name is reserved.")]
    return []


def problems(specs: Sequence[Spec], targets: Mapping[str, str]) -> list[Problem]:
    """Everything wrong with a schema. `targets` are the names that references may name."""
    found: list[Problem] = []
    seen: set[str] = set()
    for spec in specs:
        found += _name(spec["name"], seen)
        seen.add(spec["name"].lower())
        if spec["type"] not in TYPES:
            types = ", ".join(TYPES)
            found.append(problem(spec["name"], "type_invalid", f"A type is one of: {types}."))
        else:
            found += [*_properties(spec), *_computed(spec)]
            found += [*_reference(spec, targets), *_options(spec)]
    if all(spec["type"] in TYPES for spec in specs):
        found += _expressions(specs)
    return found


def change_problems(old: Definition, specs: Sequence[Spec]) -> list[Problem]:
    """Why a complete schema cannot follow the present one: types stay, and so does every field."""
    new = {spec["name"]: spec for spec in specs}
    found = []
    for before in old.schema:
        name = before["name"]
        after = new.get(name)
        if after is None:
            message = "A field cannot be removed; list every field there is."
            found.append(problem(name, "field_deletion_not_allowed", message))
        elif after["type"] != before["type"]:
            message = f"The type is {before['type']} and cannot change."
            found.append(problem(name, "type_change_not_allowed", message))
        elif after["collection"] != before["collection"]:
            message = f"The field refers to {before['collection']}, which cannot change."
            found.append(problem(name, "type_change_not_allowed", message))
        elif after["return_type"] != before["return_type"]:
            message = f"The return_type is {before['return_type']} and cannot change."
            found.append(problem(name, "type_change_not_allowed", message))
    return found


def merged(old: Definition, parts: Sequence[Spec]) -> list[JSONObject]:
    """The present schema with the properties that were sent, and with the fields that are new."""
    sent = {part["name"]: part for part in reversed(parts)}
    present = {spec["name"] for spec in old.schema}
    kept = [{**spec, **sent.get(spec["name"], {})} for spec in old.schema]
    # What names a field a second time stays, to be found wrong.
    first = [id(part) for part in sent.values() if part["name"] in present]
    return kept + [{"type": "", **part} for part in parts if id(part) not in first]


def _name(name: str, seen: set[str]) -> Iterator[Problem]:
    if not FIELD_NAME.fullmatch(name):
        message = "A name has up to 63 letters, digits and underscores, a letter first."
        yield problem(name, "name_invalid", message)
    elif name.lower() in RESERVED_FIELDS:
        yield problem(name, "name_reserved", "Every record has a field of this name already.")
    elif name.lower() in seen:
        yield problem(name, "name_duplicate", "Another field has this name (case is ignored).")


def _properties(spec: Spec) -> Iterator[Problem]:
    name, kind = spec["name"], TYPES[spec["type"]]
    for code, message in masking.problems(spec):
        yield problem(name, code, message)
    if spec.get("unique") and not kind.may_be_unique:
        yield problem(name, "invalid_option", f"A field of type {kind.type} cannot be unique.")


def _computed(spec: Spec) -> Iterator[Problem]:
    name = spec["name"]
    if spec["type"] != "computed":
        for key in ("expression", "return_type"):
            if spec.get(key) is not None:
                yield problem(name, f"{key}_invalid", f"Only a computed field has {key}.")
        return
    if not spec.get("expression"):
        yield problem(name, "expression_invalid", "A computed field needs an expression.")
    if spec.get("return_type") not in RETURN_TYPES:
        message = f"return_type is one of: {', '.join(RETURN_TYPES)}."
        yield problem(name, "return_type_invalid", message)
    for key in ("required", "default"):
        if spec.get(key) not in (None, False):
            yield problem(name, "invalid_option", f"A computed field has no {key}.")


def _expressions(specs: Sequence[Spec]) -> Iterator[Problem]:
    fields = {spec["name"]: parse_field(spec) for spec in specs}
    for name, field in fields.items():
        told = not field.expression or field.return_type not in RETURN_TYPES
        if isinstance(field, ComputedField) and not told:
            try:
                computed_node(field, fields)
            except RuleError as error:
                yield problem(name, "expression_invalid", str(error), position=error.position)


def _reference(spec: Spec, targets: Mapping[str, str]) -> Iterator[Problem]:
    name, target = spec["name"], spec.get("collection")
    if spec["type"] != "reference":
        for key in ("collection", "on_delete"):
            if spec.get(key) is not None:
                yield problem(name, "invalid_option", f"Only a reference has {key}.")
        return
    if not target or target.lower() not in targets:
        message = "Name the existing collection that this refers to, in collection."
        yield problem(name, "reference_collection_required", message)
    if spec.get("on_delete") not in (None, *ON_DELETE):
        message = f"on_delete is one of: {', '.join(ON_DELETE)}."
        yield problem(name, "on_delete_invalid", message)
    elif spec.get("on_delete") == "set_null" and spec.get("required"):
        message = "A required reference cannot be set to null."
        yield problem(name, "on_delete_invalid", message)
    if spec.get("default") is not None:
        message = "A reference has no default: every account has records of its own."
        yield problem(name, "invalid_reference", message)


def _options(spec: Spec) -> Iterator[Problem]:
    name, kind, options = spec["name"], TYPES[spec["type"]], spec.get("options") or {}
    for key in sorted(set(options) - kind.known_options - {"mask"}):
        message = f"A field of type {kind.type} has no option {key[:80]}."
        yield problem(name, "invalid_option", message)
    if not isinstance(options.get("index", False), bool):
        yield problem(name, "invalid_option", "index must be true or false.")
    field = parse_field({"options": {}, **spec})
    wrong = list(field.definition_problems())
    for message in wrong:
        yield problem(name, "invalid_option", message)
    has_default = spec.get("default") is not None and kind not in (ReferenceField, ComputedField)
    if has_default and not wrong:
        try:
            field.clean(spec["default"])
        except InvalidValue as error:
            yield problem(name, error.code, f"The default is not valid: {error}")
