"""Writes a Python module with the types of the collections that a caller may see."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
RECORDS = "/api/v1/records/"
HEAD = '''"""The collections of {url}, written by `atrium types`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, Never, NotRequired, TypedDict

from atrium_client import AsyncClient, AsyncRecords, Client, Newest, Records
'''
ACCESSOR = '''class {prefix}Collections:
    """The collections by name."""

    def __init__(self, client: {prefix}Client) -> None:
'''
SCALARS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
# What a list shows, what other requests return, and what they take.
KINDS = ("item", "record", "create", "replace", "update")
NO_CLASSES: Mapping[str, str] = {}
NEWEST = {"items", "has_more"}


def write_module(description: Schema, url: str) -> str:
    """Return the module: a TypedDict for each schema, and the collections with their types."""
    names = _collections(description)
    schemas = description["components"]["schemas"]
    classes = {
        f"{name}_{kind}": f"{class_name}{kind.title()}"
        for name, class_name in _class_names(names).items()
        for kind in KINDS
        if f"{name}_{kind}" in schemas
    }
    types = [
        text
        for key, class_name in classes.items()
        for text in _typed_dicts(class_name, schemas[key], classes)
    ]
    accessors = [_accessor(prefix, names, classes) for prefix in ("", "Async")]
    return "\n\n".join([HEAD.format(url=url), *types, *accessors])


def type_of(schema: Schema, classes: Mapping[str, str] = NO_CLASSES) -> str:
    """Return the type of the values of a schema, which may name others that have a class."""
    if "$ref" in schema:
        return classes.get(schema["$ref"].rpartition("/")[2], "dict[str, Any]")
    if schema.get("properties", {}).keys() == NEWEST:
        return f"Newest[{type_of(schema['properties']['items']['items'], classes)}]"
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "anyOf" in schema:
        types = [type_of(one, classes) for one in schema["anyOf"]]
        if any(one.get("format") == "decimal" for one in schema["anyOf"]):
            types.append("Decimal")  # which is sent, but not answered
        return " | ".join(dict.fromkeys(types))
    kinds = schema.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " | ".join(_type_of_kind(kind, schema, classes) for kind in kinds)


def _type_of_kind(kind: str, schema: Schema, classes: Mapping[str, str]) -> str:
    if kind == "array":
        return f"list[{type_of(schema.get('items', {}), classes)}]"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"dict[str, {type_of(values, classes)}]"
    return SCALARS.get(kind, "Any")


def _collections(description: Schema) -> list[str]:
    paths = [path for path in description["paths"] if path.startswith(RECORDS)]
    names = {path.removeprefix(RECORDS).split("/")[0] for path in paths}
    return sorted(name for name in names if not name.startswith("{"))


def _class_names(names: list[str]) -> dict[str, str]:
    camel = {name: re.sub("(?:^|_)(.?)", lambda part: part[1].upper(), name) for name in names}
    used = Counter(camel.values())
    return {name: found if used[found] == 1 else f"{name}_" for name, found in camel.items()}


def _typed_dicts(name: str, schema: Schema, classes: Mapping[str, str]) -> Iterator[str]:
    """Yield the class of a schema, behind that of what its records expand to."""
    fields = dict(_fields(schema, classes))
    expanded = schema["properties"].get("expand", {})
    if "expand" in fields and expanded.get("properties"):
        fields["expand"] = f"NotRequired[{name}Expand]"
        yield _typed_dict(f"{name}Expand", dict(_fields(expanded, classes)))
    yield _typed_dict(name, fields)


def _typed_dict(name: str, fields: Mapping[str, str]) -> str:
    if any(map(keyword.iskeyword, fields)):
        items = ", ".join(f"{field!r}: {kind!r}" for field, kind in fields.items())
        return f"{name} = TypedDict({name!r}, {{{items}}})\n"
    lines = [f"    {field}: {kind}\n" for field, kind in fields.items()] or ["    pass\n"]
    return f"class {name}(TypedDict):\n{''.join(lines)}"


def _fields(schema: Schema, classes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, field in schema["properties"].items():
        kind = type_of(field, classes)
        is_required = name in schema.get("required", ())
        yield name, kind if is_required else f"NotRequired[{kind}]"


def _accessor(prefix: str, names: list[str], classes: Mapping[str, str]) -> str:
    lines = [
        f"        self.{_attribute(name)} = {prefix}Records"
        f"[{', '.join(_arguments(name, classes))}](client, {name!r})\n"
        for name in names
    ]
    return ACCESSOR.format(prefix=prefix) + ("".join(lines) or "        pass\n")


def _attribute(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _arguments(name: str, classes: Mapping[str, str]) -> list[str]:
    """Return the types of a collection; what the caller may not do takes no argument."""
    found = {kind: classes.get(f"{name}_{kind}") for kind in KINDS}
    record = found["record"] or "dict[str, Any]"
    return [
        found["item"] or record,
        record,
        *(found[kind] or "Never" for kind in ("create", "replace", "update")),
    ]
