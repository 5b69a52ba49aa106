"""The API description with the collections of this instance, typed, for generators of clients.

It tells a caller of what the rules open to it and of nothing else: an operation that is closed is
not there, a field that is hidden is in no schema, and one that the caller sees masked is a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, ComputedField, Field, JsonField
from app.rules import OPERATIONS
from app.types import JSONObject

Spec = JSONObject

LIST = "/api/v1/records/{collection}"
ONE = f"{LIST}/{{record_id}}"
# By operation: the path and verb that the plain description has it at.
PLACES = {
    "list": [(LIST, "get")],
    "create": [(LIST, "post")],
    "view": [(ONE, "get")],
    "update": [(ONE, "put"), (ONE, "patch")],
    "delete": [(ONE, "delete")],
}
SUMMARIES = {
    "get": {LIST: "List", ONE: "Get"},
    "post": {LIST: "Create"},
    "put": {ONE: "Replace"},
    "patch": {ONE: "Change"},
    "delete": {ONE: "Delete"},
}


def added(description: Spec, *, by: Principal) -> Spec:
    """The description with schemas and paths of every collection that is open to the caller."""
    for definition in definitions.get_all():
        opened = {
            one: accesses.for_operation(by, definition, one)
            for one in OPERATIONS
            if accesses.is_open(by, definition, one)
        }
        if opened:
            _Collection(definition, opened, description).add()
    return description


class _Collection:
    """What one collection adds; its schemas are called `<collection>_record` and so on."""

    def __init__(
        self, definition: Definition, opened: Mapping[str, Access], description: Spec
    ) -> None:
        self.definition, self.opened = definition, opened
        self.paths, self.schemas = description["paths"], description["components"]["schemas"]

    def add(self) -> None:
        """Add the schemas and the paths."""
        known = self.paths
        for operation in self.opened:
            for template, verb in PLACES[operation]:
                path = template.replace("{collection}", self.definition.name)
                item = known.setdefault(path, {"parameters": _shared(known[template])})
                item[verb] = self._operation(operation, verb, template, known[template][verb])

    def _operation(self, operation: str, verb: str, template: str, plain: Spec) -> Spec:
        made, name = deepcopy(plain), self.definition.name
        word = SUMMARIES[verb][template]
        made["summary"] = f"{word} {'records' if operation == 'list' else 'a record'} of {name}."
        made["operationId"] = f"{word.lower()}_{name}"
        if "requestBody" in made:
            body = self._body(operation, verb)
            made["requestBody"]["content"] = {"application/json": {"schema": body}}
        for status, response in made["responses"].items():
            if status.startswith("2") and "content" in response:
                schema = self._page() if operation == "list" else self._answer()
                response["content"] = {"application/json": {"schema": schema}}
        if operation == "list":
            made["parameters"] = [*made["parameters"], *self._comparisons(made["parameters"])]
        return made

    def _page(self) -> Spec:
        seen = self.opened["list"]
        view = self.opened.get("view")
        same = view is not None and view.readable.keys() == seen.readable.keys()
        item = self._record(view) if view and same else self._record(seen, "item")
        page = deepcopy(self.schemas["RecordPage"])
        page["properties"]["items"]["items"] = item
        return self._named("page", page)

    def _answer(self) -> Spec:
        view = self.opened.get("view")
        plain = {"$ref": "#/components/schemas/Record"}
        if view is None:
            return plain
        # Whoever may write a record but not view it gets the system's fields.
        record = self._record(view)
        return record if view.condition is None else {"anyOf": [record, plain]}

    def _record(self, access: Access, kind: str = "record") -> Spec:
        schema = _record(access)
        # What answers have beside the fields, such as what was expanded.
        beside = self.schemas["Record"]["properties"]
        schema["properties"] = {**beside, **schema["properties"]}
        return self._named(kind, schema)

    def _body(self, operation: str, verb: str) -> Spec:
        kind = {"post": "create", "put": "replace", "patch": "update"}[verb]
        return self._named(kind, _body(self.opened[operation], partial=verb == "patch"))

    def _named(self, kind: str, schema: Spec) -> Spec:
        # No schema of the service has an underscore in its name.
        name = f"{self.definition.name}_{kind}"
        self.schemas[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}

    def _comparisons(self, taken: Iterable[Spec]) -> Iterable[Spec]:
        names = {one["name"] for one in taken if "name" in one}
        for name, field in self.opened["list"].comparable.items():
            if field.filterable and name not in names:
                yield {
                    "in": "query",
                    "name": name,
                    "description": f"Only records with this {name}; repeated, with any of them.",
                    "schema": {"type": "array", "items": {"type": _plain_type(field)}},
                    "required": False,
                }


def _shared(item: Spec) -> list[Spec]:
    return [one for one in item["parameters"] if one.get("name") != "collection"]


def _record(access: Access) -> Spec:
    properties = {
        name: _shown(name, field, masked=name in access.masked)
        for name, field in access.readable.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _shown(name: str, field: Field, *, masked: bool) -> Spec:
    if name in SYSTEM_FIELDS:
        schema = dict(SYSTEM_FIELDS[name].like.json_schema)
        return _nullable(schema) if SYSTEM_FIELDS[name].nullable else schema
    schema = {"type": "string", "description": "Masked."} if masked else _value(field)
    return schema if field.required else _nullable(schema)


def _body(access: Access, *, partial: bool) -> Spec:
    fields = {n: one for n, one in access.definition.fields.items() if n in access.writable}
    properties = {
        name: _value(one) if one.required else _nullable(_value(one))
        for name, one in fields.items()
    }
    needed = [n for n, one in fields.items() if one.required and one.default is None]
    schema: Spec = {"type": "object", "properties": properties}
    return schema if partial or not needed else {**schema, "required": needed}


def _value(field: Field) -> Spec:
    if isinstance(field, ComputedField):
        return _value(field.like)
    options, schema = field.options, dict(field.json_schema)
    for option, keyword in BOUNDS.items():
        if option in options:
            schema[keyword] = options[option]
    if options.get("integer"):
        schema["type"] = "integer"
    if isinstance(field, JsonField):
        schema |= {"additionalProperties": True, "items": {}}
    if field.collection:
        schema["description"] = f"The id of a record of {field.collection}."
    return schema


BOUNDS = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "choices": "enum",
    "min": "minimum",
    "max": "maximum",
}


def _nullable(schema: Spec) -> Spec:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **choices}


def _plain_type(field: Field) -> str:
    kind = _value(field)["type"]
    return kind if isinstance(kind, str) else "string"
