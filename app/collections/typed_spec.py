"""The API description with typed schemas of this instance's collections, for client generators.

It contains only what the rules open to the caller: closed operations and hidden fields are missing,
and masked fields are texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import back_references, definitions
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS, Field, SequenceField
from app.collections.people import People
from app.rules import OPERATIONS
from app.types import JSONObject

Spec = JSONObject

LIST = "/api/v1/records/{collection}"
BY_ID = f"{LIST}/{{record_id}}"
# Path and verb of each operation in the generic description.
PLACES = {
    "list": [(LIST, "get")],
    "create": [(LIST, "post")],
    "view": [(BY_ID, "get")],
    "update": [(BY_ID, "put"), (BY_ID, "patch")],
    "delete": [(BY_ID, "delete")],
}
SUMMARIES = {
    "get": {LIST: "List", BY_ID: "Get"},
    "post": {LIST: "Create"},
    "put": {BY_ID: "Replace"},
    "patch": {BY_ID: "Change"},
    "delete": {BY_ID: "Delete"},
}


def add_collections(description: Spec, *, by: Principal) -> Spec:
    """Add schemas and paths of every collection that is open to the caller."""
    for definition in definitions.get_all(with_views=True):
        accesses_ = {
            operation: accesses.for_operation(by, definition, operation)
            for operation in OPERATIONS
            if accesses.is_open(by, definition, operation)
        }
        if accesses_:
            _Collection(definition, accesses_, description).add()
    return description


class _Collection:
    """Adds one collection; its schemas are named `<collection>_record` and so on."""

    def __init__(
        self, definition: Definition, opened: Mapping[str, Access], description: Spec
    ) -> None:
        self.definition, self.opened = definition, opened
        self.paths, self.schemas = description["paths"], description["components"]["schemas"]

    def add(self) -> None:
        """Add the schemas and the paths."""
        paths = self.paths
        for operation in self.opened:
            for template, verb in PLACES[operation]:
                path = template.replace("{collection}", self.definition.name)
                item = paths.setdefault(path, {"parameters": _shared(paths[template])})
                item[verb] = self._operation(operation, verb, template, paths[template][verb])

    def _operation(self, operation: str, verb: str, template: str, description: Spec) -> Spec:
        result, name = deepcopy(description), self.definition.name
        verb_text = SUMMARIES[verb][template]
        result["summary"] = (
            f"{verb_text} {'records' if operation == 'list' else 'a record'} of {name}."
        )
        # No operation of the service has such a name, whatever the collection is called.
        suffix = "records" if operation == "list" else "record"
        result["operationId"] = f"{verb_text.lower()}_{name}_{suffix}"
        if "requestBody" in result:
            body = self._body(operation, verb)
            result["requestBody"]["content"] = {"application/json": {"schema": body}}
        for status, response in result["responses"].items():
            if status.startswith("2") and "content" in response:
                schema = self._page() if operation == "list" else self._answer()
                response["content"] = {"application/json": {"schema": schema}}
        if operation == "list":
            result["parameters"] = [*result["parameters"], *self._comparisons(result["parameters"])]
        return result

    def _page(self) -> Spec:
        access, kind = shown_in_lists(self.opened["list"], self.opened.get("view"))
        item = self._record(access, kind)
        page = deepcopy(self.schemas["RecordPage"])
        page["properties"]["items"]["items"] = item
        return self._named("page", page)

    def _answer(self) -> Spec:
        view = self.opened.get("view")
        system_only = {"$ref": "#/components/schemas/RecordObject"}
        if view is None:
            return system_only
        # Without view access, callers get only the system fields of what they write.
        record = self._record(view)
        return record if view.condition is None else {"anyOf": [record, system_only]}

    def _record(self, access: Access, kind: str = "record") -> Spec:
        schema = _record(access)
        # Properties of responses besides the fields, such as `expand`.
        extra = dict(self.schemas["RecordObject"]["properties"])
        extra["expand"] = {**extra["expand"], "properties": dict(_expanded(access))}
        schema["properties"] = {**extra, **schema["properties"]}
        return self._named(kind, schema)

    def _body(self, operation: str, verb: str) -> Spec:
        kind = {"post": "create", "put": "replace", "patch": "update"}[verb]
        return self._named(kind, _body(self.opened[operation], partial=verb == "patch"))

    def _named(self, kind: str, schema: Spec) -> Spec:
        # Schemas of the service have no underscores, so names cannot collide.
        name = f"{self.definition.name}_{kind}"
        self.schemas[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}

    def _comparisons(self, parameters: Iterable[Spec]) -> Iterable[Spec]:
        names = {parameter["name"] for parameter in parameters if "name" in parameter}
        for name, field in self.opened["list"].comparable.items():
            if field.filterable and name not in names:
                kind = field.value_schema.get("type")
                if not isinstance(kind, str):
                    kind = "string"
                yield {
                    "in": "query",
                    "name": name,
                    "description": f"Only records with this {name}; repeated, with any of them.",
                    "schema": {"type": "array", "items": {"type": kind}},
                    "required": False,
                }


def shown_in_lists(listed: Access, view: Access | None) -> tuple[Access, str]:
    """The access of records in lists, and their kind: those of requests, if they are the same."""
    if view is not None and view.readable.keys() == listed.readable.keys():
        return view, "record"
    return listed, "item"


def _expanded(access: Access) -> Iterator[tuple[str, Spec]]:
    """What `expand` may add to a record, by name: what it refers to, and what refers to it."""
    for name in access.comparable:
        target = access.definition.expanded(name)
        if isinstance(target, People):
            schema: Spec = {"type": ["object", "string", "null"]}
        elif target is not None and accesses.is_open(access.caller, target, "view"):
            schema = _reference(target, "record")
        else:
            continue
        is_list = name in access.definition.lists
        yield name, {"type": "array", "items": schema} if is_list else schema
    referring = list(back_references.to(access.definition, access.caller))
    names = [one.name.lower() for one in referring]
    for one in referring:
        if names.count(one.name.lower()) > 1:
            continue  # it does not tell which is meant
        view = accesses.if_open(access.caller, one.collection, "view")
        items = _reference(one.collection, shown_in_lists(one.listed, view)[1])
        properties = {"items": {"type": "array", "items": items}, "has_more": {"type": "boolean"}}
        yield one.name, {"type": "object", "properties": properties, "required": [*properties]}


def _reference(target: Definition, kind: str) -> Spec:
    return {"$ref": f"#/components/schemas/{target.name}_{kind}"}


def _shared(item: Spec) -> list[Spec]:
    return [parameter for parameter in item["parameters"] if parameter.get("name") != "collection"]


def _record(access: Access) -> Spec:
    properties = {
        name: _field_schema(name, field, masked=name in access.masked)
        for name, field in access.readable.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _field_schema(name: str, field: Field, *, masked: bool) -> Spec:
    if name in SYSTEM_FIELDS:
        schema = dict(SYSTEM_FIELDS[name].like.json_schema)
        return _nullable(schema) if SYSTEM_FIELDS[name].nullable else schema
    schema = {"type": "string", "description": "Masked."} if masked else field.value_schema
    is_there = field.required or (isinstance(field, SequenceField) and not masked)
    return schema if is_there else _nullable(schema)


def _body(access: Access, *, partial: bool) -> Spec:
    fields = {n: field for n, field in access.definition.fields.items() if n in access.writable}
    schemas = {n: one.change_schema if partial else one.input_schema for n, one in fields.items()}
    properties = {
        name: schema if fields[name].required else _nullable(schema)
        for name, schema in schemas.items()
    }
    required = [n for n, field in fields.items() if field.required and not field.has_default]
    schema: Spec = {"type": "object", "properties": properties}
    return schema if partial or not required else {**schema, "required": required}


def _nullable(schema: Spec) -> Spec:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **choices}
