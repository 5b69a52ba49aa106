"""Validates schemas; reports all problems of all fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from app.collections import indexes, masking, table
from app.collections.definitions import (
    RIGHTS,
    Definition,
    caller_condition,
    computed_node,
    default_expression,
    default_node,
    parse_field,
)
from app.collections.fields import (
    MULTIPLE,
    RETURN_TYPES,
    SYSTEM_FIELDS,
    TYPES,
    ComputedField,
    Field,
    InvalidValue,
    MissingField,
    ReferenceField,
    SequenceField,
    kind_of,
)
from app.errors import problem
from app.rules import KEYWORDS, Node, RuleError, cost
from app.types import JSONMapping, JSONObject

COLLECTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,55}")
FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
RULE_WORDS = {word.lower() for word in KEYWORDS}
RESERVED_COLLECTIONS = {"names", "export", "import", "batch", "aggregate", "rules", "plan"}
RESERVED_FIELDS = set(SYSTEM_FIELDS) | table.DATABASE_COLUMNS
LONGEST_SCHEMA = 200
FIELDS_TOGETHER = 5  # what all computed fields of a collection may cost, in expressions
MAX_SEARCHED = 10
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
    "readable_if": None,
    "writable_if": None,
    "expression": None,
    "return_type": None,
}

NO_FIELDS: Mapping[str, Field] = {}
# A plain default that begins so is meant as an expression.
LOOKS_LIKE_EXPRESSION = re.compile(r"\s*(@(request|account)\.|@?now\(\)|@now\b|@[a-z_]+\()")

Problem = JSONObject
Spec = JSONMapping


def complete(spec: Spec) -> JSONObject:
    """A field definition with every property, as stored and returned."""
    full = {"name": spec["name"], "type": spec["type"], **DEFAULTS, **spec}
    full.pop("rename_from", None)
    if not full.get("multiple"):
        full.pop("multiple", None)  # specs of earlier releases have none
    if kind := kind_of(full):
        full["on_delete"] = full["on_delete"] or kind.default_on_delete
    if full["pii"]:
        full["mask_type"] = full["mask_type"] or "full"
    return full


def name_problems(name: str) -> list[Problem]:
    """The problems of a collection name."""
    if not COLLECTION_NAME.fullmatch(name):
        message = "Use 3 to 56 letters, digits and underscores, starting with a letter."
        return [problem("name", "name_invalid", message)]
    if name.lower() in RESERVED_COLLECTIONS | RULE_WORDS:
        return [problem("name", "name_reserved", "This name is reserved.")]
    return []


def problems(
    specs: Sequence[Spec],
    targets: Mapping[str, str],
    index_specs: Sequence[Spec] = (),
    present: Mapping[str, Field] = NO_FIELDS,
) -> list[Problem]:
    """All problems of a schema and its indexes; references may name the collections `targets`.

    Fields that are `present` keep names that are words of the rule language, and their defaults.
    """
    result: list[Problem] = []
    max_bytes = indexes.max_bytes(specs, index_specs)
    seen_names: set[str] = set()
    for spec in specs:
        result += _name(spec["name"], seen_names, present)
        seen_names.add(spec["name"].lower())
        old = present.get(spec["name"])
        if isinstance(old, MissingField) and old.type == spec["type"]:
            result.append(problem(spec["name"], "type_not_loaded", old.not_loaded))
        elif spec["type"] not in TYPES:
            types = ", ".join(TYPES)
            result.append(problem(spec["name"], "type_invalid", f"A type is one of: {types}."))
        else:
            result += [*_properties(spec), *_computed(spec), *_rights(spec, specs)]
            result += [*_reference(spec, targets), *_options(spec, max_bytes.get(spec["name"]))]
            result += _default(spec, specs, old)
    if all(spec["type"] in TYPES for spec in specs):
        result += _expressions(specs)
    searched = [spec["name"] for spec in specs if (spec.get("options") or {}).get("search") is True]
    if len(searched) > MAX_SEARCHED:
        message = f"At most {MAX_SEARCHED} fields of a collection are searched."
        result.append(problem(searched[MAX_SEARCHED], "invalid_option", message))
    return [*result, *indexes.problems(specs, index_specs)]


def change_problems(
    old: Definition, specs: Sequence[Spec], removed: Collection[str] = ()
) -> list[Problem]:
    """The problems of replacing the present schema: types must stay, and fields not `removed`."""
    new = {spec["name"]: spec for spec in specs}
    result = _removal_problems(old, new, removed)
    for old_spec in old.schema:
        name = old_spec["name"]
        new_spec = new.get(name)
        if new_spec is None:
            if name not in removed:
                message = "List all present fields, or name this one in remove_fields."
                result.append(problem(name, "field_deletion_not_allowed", message))
        elif new_spec["type"] != old_spec["type"]:
            message = f"The type is {old_spec['type']} and cannot change."
            result.append(problem(name, "type_change_not_allowed", message))
        elif new_spec["collection"] != old_spec["collection"]:
            message = f"The field refers to {old_spec['collection']}, which cannot change."
            result.append(problem(name, "type_change_not_allowed", message))
        elif bool(new_spec.get("multiple")) != bool(old_spec.get("multiple")):
            message = "A list stays a list, and a single value a single one."
            result.append(problem(name, "type_change_not_allowed", message))
        elif new_spec["return_type"] != old_spec["return_type"]:
            message = f"The return_type is {old_spec['return_type']} and cannot change."
            result.append(problem(name, "type_change_not_allowed", message))
    return result


def renames(
    old: Definition, specs: Sequence[Spec], removed: Collection[str], problems: list[Problem]
) -> dict[str, str]:
    """The new name of each field that a spec renames; adds problems to `problems`.

    A spec whose field has its name already renames nothing: it can be sent again.
    """
    result: dict[str, str] = {}
    keys = {name.lower(): name for name in old.declared}
    plain_names = {spec["name"] for spec in specs if not spec.get("rename_from")}
    for spec in specs:
        name, former = spec["name"], spec.get("rename_from")
        if not former or former == name or (former not in old.declared and name in old.declared):
            continue
        if invalid := list(_name(name, set())):
            problems += invalid
        elif former not in old.declared:
            message = f"There is no field {former[:80]} to rename."
            problems.append(problem(name, "unknown_field", message))
        elif former in result or former in removed or former in plain_names:
            message = f"{former[:80]} cannot be renamed and occur in another way as well."
            problems.append(problem(name, "name_duplicate", message))
        elif keys.get(name.lower(), former) != former:
            message = "Another field has this name: rename or remove that one beforehand."
            problems.append(problem(name, "name_duplicate", message))
        else:
            result[former] = name
    return {} if problems else result


def _removal_problems(
    old: Definition, new: Collection[str], removed: Collection[str]
) -> list[Problem]:
    result = []
    for name, count in Counter(removed).items():
        if count > 1:
            message = f"{name[:80]} is named {count} times."
            result.append(problem("remove_fields", "name_duplicate", message))
        elif name not in old.declared:
            message = f"There is no field {name[:80]}."
            result.append(problem("remove_fields", "unknown_field", message))
        elif name in new:
            message = "This field is to be removed: define a new one of this name afterwards."
            result.append(problem(name, "invalid_option", message))
    return result


def order_problems(specs: Sequence[Spec], order: Collection[str]) -> list[Problem]:
    """The problems of an order of fields, which may leave some out."""
    unknown = [name for name in dict.fromkeys(order) if name not in {s["name"] for s in specs}]
    messages = (f"There is no field {name[:80]}." for name in unknown)
    return [problem("field_order", "unknown_field", message) for message in messages]


def merged(
    old: Definition, parts: Sequence[Spec], removed: Collection[str] = ()
) -> list[JSONObject]:
    """Merge sent properties and new fields into the present schema, without `removed` fields."""
    sent = {part["name"]: part for part in reversed(parts)}
    present = {spec["name"] for spec in old.schema} - {*removed}
    result = [
        {**spec, **sent.get(spec["name"], {})} for spec in old.schema if spec["name"] in present
    ]
    # Keep duplicates, so that validation reports them.
    used = [id(part) for part in sent.values() if part["name"] in present]
    return result + [{"type": "", **part} for part in parts if id(part) not in used]


def _name(name: str, seen_names: set[str], present: Collection[str] = ()) -> Iterator[Problem]:
    if not FIELD_NAME.fullmatch(name):
        message = "Use up to 63 letters, digits and underscores, starting with a letter."
        yield problem(name, "name_invalid", message)
    elif name.lower() in RESERVED_FIELDS:
        yield problem(name, "name_reserved", "This name is reserved for a system field.")
    elif name.lower() in RULE_WORDS and name not in present:
        message = "This name is a word of the rule language, which could not name the field."
        yield problem(name, "name_reserved", message)
    elif name.lower() in seen_names:
        yield problem(name, "name_duplicate", "Another field has this name (case is ignored).")


def _properties(spec: Spec) -> Iterator[Problem]:
    name, kind = spec["name"], kind_of(spec) or Field
    if spec.get("multiple") and spec["type"] not in MULTIPLE:
        yield problem(name, "invalid_option", "Only a reference or a user has multiple.")
    for code, message in masking.problems(spec):
        yield problem(name, code, message)
    if kind is SequenceField:
        for key in ("required", "default"):
            if spec.get(key) not in (None, False):
                yield problem(name, "invalid_option", f"A sequence has no {key}: it has a number.")
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


def _rights(spec: Spec, specs: Sequence[Spec]) -> Iterator[Problem]:
    kind = kind_of(spec) or Field
    if not kind.is_written and spec.get("writable_if") is not None:
        message = f"A {kind.type} field is not written."
        yield problem(spec["name"], "invalid_option", message)
    for key in RIGHTS:
        try:
            caller_condition(spec.get(key), [one["name"] for one in specs])
        except RuleError as error:
            yield problem(spec["name"], f"{key}_invalid", str(error), position=error.position)


def _default(spec: Spec, specs: Sequence[Spec], present: Field | None) -> Iterator[Problem]:
    default = spec.get("default")
    is_new = present is None or present.default != default
    if isinstance(default, str) and is_new and LOOKS_LIKE_EXPRESSION.match(default):
        message = 'The default looks like an expression: send {"expression": "..."}.'
        yield problem(spec["name"], "invalid_option", message)
    if default_expression(spec):
        try:
            default_node(parse_field({"options": {}, **spec}), [one["name"] for one in specs])
        except RuleError as error:
            message = f"The default is not valid: {error}"
            yield problem(spec["name"], "default_invalid", message, position=error.position)
    if default == "" and spec.get("required") and (is_new or not (present and present.required)):
        message = "The default is not valid: a required field takes no empty text."
        yield problem(spec["name"], "invalid_option", message)


def _expressions(specs: Sequence[Spec]) -> Iterator[Problem]:
    fields = {spec["name"]: parse_field(spec) for spec in specs}
    nodes: list[Node] = []
    for name, field in fields.items():
        is_incomplete = not field.expression or field.return_type not in RETURN_TYPES
        if isinstance(field, ComputedField) and not is_incomplete:
            try:
                nodes.append(computed_node(field, fields))
                cost.check(*nodes, times=FIELDS_TOGETHER)
            except RuleError as error:
                yield problem(name, "expression_invalid", str(error), position=error.position)


def _reference(spec: Spec, targets: Mapping[str, str]) -> Iterator[Problem]:
    name, target, kind = spec["name"], spec.get("collection"), TYPES[spec["type"]]
    is_reference = kind is ReferenceField
    allowed = {"collection": is_reference, "on_delete": kind.default_on_delete is not None}
    for key in (key for key, may in allowed.items() if not may and spec.get(key) is not None):
        yield problem(name, "invalid_option", f"Only a reference has {key}.")
    if not allowed["on_delete"]:
        return
    if is_reference and (not target or target.lower() not in targets):
        message = "Set collection to the name of an existing collection of records, not of a view."
        yield problem(name, "reference_collection_required", message)
    if spec.get("on_delete") not in (None, *ON_DELETE):
        message = f"on_delete is one of: {', '.join(ON_DELETE)}."
        yield problem(name, "on_delete_invalid", message)
    elif (spec.get("on_delete") or kind.default_on_delete) == "set_null" and spec.get("required"):
        message = "A required reference cannot be set to null."
        yield problem(name, "on_delete_invalid", message)
    if spec.get("default") is not None and not default_expression(spec):
        message = "References cannot have a default, as each account has its own records."
        yield problem(name, "invalid_reference", message)


def _options(spec: Spec, max_bytes: int | None) -> Iterator[Problem]:
    name, kind, options = spec["name"], kind_of(spec) or Field, spec.get("options") or {}
    for key in sorted({*options} - {*kind.known_options, "mask"}):
        message = f"A field of type {kind.type} has no option {key[:80]}."
        yield problem(name, "invalid_option", message)
    for key in ("index", "search"):
        if not isinstance(options.get(key, False), bool):
            yield problem(name, "invalid_option", f"{key} must be true or false.")
    field = parse_field({"options": {}, **spec}, max_bytes)
    messages = list(field.definition_problems())
    for message in messages:
        yield problem(name, "invalid_option", message)
    if field.default is not None and kind.takes_default and not messages:
        try:
            field.clean(spec["default"])
        except InvalidValue as error:
            yield problem(name, error.code, f"The default is not valid: {error}")
