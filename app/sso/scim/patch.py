"""Applies PATCH operations to a resource (RFC 7644, section 3.5.2), as Okta and Entra ID send them.

Names of operations may have any case. Attributes that no schema of ours has are ignored: Entra ID
sends some by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.sso.scim import attributes, filters
from app.sso.scim.attributes import READ_ONLY, Attribute, ResourceType
from app.sso.scim.errors import not_changeable, refusal
from app.sso.scim.filters import Path
from app.types import JSONMapping, JSONObject

ADD, REMOVE, REPLACE = OPERATIONS = ("add", "remove", "replace")


@dataclass(frozen=True)
class Operation:
    """One change of a resource; without a path `value` has the attributes."""

    op: str
    path: str | None
    value: object


def apply(resource: JSONMapping, operations: Sequence[Operation], kind: ResourceType) -> JSONObject:
    """Return a copy of a resource after the operations. Raises BadRequest."""
    patched = dict(resource)
    for operation in operations:
        for path, value in _targets(operation, kind):
            _apply(patched, operation.op, path, value, kind)
    return patched


def _targets(operation: Operation, kind: ResourceType) -> Iterator[tuple[Path, object]]:
    if operation.path is not None:
        yield filters.parse_path(operation.path, kind.schema), operation.value
        return
    if operation.op == REMOVE:
        raise refusal("noTarget", "A remove operation needs a path.")
    if not isinstance(operation.value, dict):
        raise refusal("invalidValue", "Without a path the value must be an object.")
    for name, value in operation.value.items():
        # Names may be paths, such as name.givenName.
        path = filters.parse_path(name, kind.schema)
        attribute = kind.find(path.attribute)
        # Read-only ones are ignored, as in a PUT: Okta sends the id, too.
        if attribute is None or attribute.mutability != READ_ONLY:
            yield path, value


def _apply(resource: JSONObject, op: str, path: Path, value: object, kind: ResourceType) -> None:
    attribute = kind.find(path.attribute)
    if attribute is None or attribute.name == "schemas":
        return
    if attribute.mutability == READ_ONLY:
        raise not_changeable(f"{attribute.name} is read-only.")
    if path.filter is not None and not attribute.multiple:
        raise refusal("invalidPath", f"{attribute.name} has one value: leave the filter out.")
    name = attribute.name
    if path.sub is None:
        value = attributes.canonical_value(value, attribute)
        is_single = value is not None and not isinstance(value, list)
        if attribute.multiple and is_single and path.filter is None:
            value = [value]
    if path.filter is not None:
        resource[name] = list(_filtered(resource.get(name) or [], op, path, value, attribute))
    elif path.sub is not None and attribute.multiple:
        values = resource.get(name) or [{}]
        resource[name] = [_with_part(item, op, attribute, path.sub, value) for item in values]
    elif path.sub is not None:
        resource[name] = _with_part(resource.get(name), op, attribute, path.sub, value)
    elif op == REMOVE:
        resource[name] = _removed(resource.get(name), value) if attribute.multiple else None
    elif attribute.multiple:
        present = resource.get(name) or [] if op == ADD else []
        added = value if isinstance(value, list) else []
        # Of those with the same `value` the last counts.
        resource[name] = list({_key(item): item for item in (*present, *added)}.values())
    elif op == ADD and isinstance(value, dict):
        resource[name] = {**_parts(resource.get(name)), **value}
    else:
        resource[name] = value


def _key(item: object) -> str:
    return str(item.get("value") if isinstance(item, dict) else item).lower()


def _removed(present: object, value: object) -> list[object]:
    """Return the values without those to remove: null removes all, an empty list none."""
    values = present if isinstance(present, list) else []
    if value is None:
        return []
    leaving = {_key(item) for item in (value if isinstance(value, list) else [value])}
    return [item for item in values if _key(item) not in leaving]


def _filtered(
    values: Sequence[object], op: str, path: Path, value: object, attribute: Attribute
) -> Iterator[object]:
    found = False
    for item in values:
        is_match = path.filter is not None and filters.matches(path.filter, _parts(item))
        found = found or is_match
        if not is_match:
            yield item
        elif path.sub is not None:
            yield _with_part(item, op, attribute, path.sub, value)
        elif op != REMOVE:
            yield {**_parts(item), **_parts(value)}
    if not found and op == REPLACE:
        raise refusal("noTarget", f"No value of {attribute.name} matches.")
    if not found and op == ADD:
        yield value if isinstance(value, dict) else {_part(attribute, path.sub): value}


def _with_part(item: object, op: str, attribute: Attribute, sub: str, value: object) -> JSONObject:
    changed = dict(_parts(item))
    name = _part(attribute, sub)
    changed.pop(name, None)
    return changed if op == REMOVE else {**changed, name: value}


def _parts(value: object) -> JSONMapping:
    """Return the parts of a value, of which an operation before may have made anything."""
    return value if isinstance(value, dict) else {}


def _part(attribute: Attribute, sub: str | None) -> str:
    part = attributes.find(attribute.sub, sub or "")
    if part is None:
        raise refusal("invalidPath", f"{attribute.name} has no attribute “{sub}”.")
    return part.name
