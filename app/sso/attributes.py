"""Attributes of users that a provider or a directory fills, as their definitions say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.accounts import attributes
from app.accounts.attributes import Attribute, Kind
from app.accounts.models import User
from app.collections import attribute_values
from app.collections.fields import Field, InvalidValue
from app.sso.scim.attributes import USER, USER_SCHEMA, ResourceType
from app.sso.scim.attributes import Attribute as Described
from app.sso.scim.patch import REMOVE, Operation
from app.types import JSONMapping, JSONObject

MISSING = object()
ENTERPRISE = "EnterpriseUser"
ENTERPRISE_SCHEMA = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
SCIM_TYPES = {"number": "decimal", "boolean": "boolean", "datetime": "dateTime"}
"""The types of attributes in descriptions; all others are strings."""


def from_claims(user: User, claims: JSONMapping) -> JSONObject | None:
    """The user's values after a sign-in with these claims; None if they stay.

    A claim that is not sent leaves a value, one of the wrong type, too. Null takes it away.
    """
    values: JSONObject = {}
    for one in attributes.load(Kind.USERS).by_name.values():
        source = one.definition["sso"]
        if source and source in claims:
            found = _accepted(attribute_values.field_of(one), claims[source])
            if found is not MISSING and found != user.attributes.get(one.name):
                values[one.name] = found
    return attributes.merged(user.attributes, values) if values else None


def _accepted(field: Field, sent: object) -> object:
    if isinstance(sent, list) and field.type != "multi_select":
        sent = sent[0] if sent else None
    if isinstance(sent, str) and field.type == "multi_select":
        sent = [sent]
    if sent in (None, "", []):
        return MISSING if field.required else None
    try:
        # SAML and some providers send texts only.
        is_text = isinstance(sent, str) and field.json_schema["type"] != "string"
        return attribute_values.clean(field, field.parse(str(sent)) if is_text else sent)
    except InvalidValue:
        return MISSING


@dataclass(frozen=True)
class Extra:
    """An attribute that SCIM fills: the schema that it is in, and the names that lead to it."""

    attribute: Attribute
    schema: str
    names: tuple[str, ...]

    def find(self, resource: JSONMapping) -> object:
        """The value that a resource has; MISSING if it says nothing."""
        return _at(resource, (*([self.schema] if self.schema else []), *self.names))

    def below(self, path: str) -> tuple[str, ...] | None:
        """The names that lead to it from a path in lower case; None if none do."""
        if path and path == self.schema.lower():
            return self.names
        prefix = f"{self.schema}:" if self.schema else ""
        for count in range(1, len(self.names) + 1):
            if path == f"{prefix}{'.'.join(self.names[:count])}".lower():
                return self.names[count:]
        return None


def _at(value: object, names: Sequence[str]) -> object:
    for name in names:
        if isinstance(value, list):  # as Entra ID sends a manager
            value = value[0] if value else None
        if name == "value" and isinstance(value, str):
            return value
        if not isinstance(value, Mapping):
            return MISSING
        folded = {key.lower(): one for key, one in value.items()}
        value = folded.get(name.lower(), MISSING)
    return value


def extras() -> Sequence[Extra]:
    """The attributes that SCIM fills."""
    return list(_extras())


def _extras() -> Iterator[Extra]:
    schemas: dict[str, str] = {}
    for one in attributes.load(Kind.USERS).by_name.values():
        if source := one.definition["scim"]:
            schema, _, name = source.rpartition(":")
            core = schema.lower() in ("", USER_SCHEMA.lower())
            spelled = schemas.setdefault(schema.lower(), schema)
            yield Extra(one, "" if core else spelled, tuple(name.split(".")))


def extended(kind: ResourceType, of: Sequence[Extra]) -> ResourceType:
    """The core schema of users with the attributes that are mapped to it."""
    return replace(kind, attributes=_described(kind.attributes, [o for o in of if not o.schema]))


def extensions(of: Sequence[Extra]) -> Sequence[ResourceType]:
    """The other schemas that attributes of users are mapped to."""
    schemas = dict.fromkeys(one.schema for one in of if one.schema)
    return [
        ResourceType(
            ENTERPRISE if schema.lower() == ENTERPRISE_SCHEMA.lower() else schema,
            USER.endpoint,
            schema,
            "Attributes of users beside the core schema.",
            _described((), [one for one in of if one.schema == schema]),
        )
        for schema in schemas
    ]


def _described(present: Sequence[Described], of: Iterable[Extra]) -> tuple[Described, ...]:
    """The attributes of a schema with those that are mapped to it, unless it has them."""
    described = {one.name.lower(): one for one in present}
    for extra in of:
        head, *inner = extra.names
        outer = described.get(head.lower())
        if inner:
            outer = outer or Described(head, f"Parts of {head}.", "complex")
            below = replace(extra, names=tuple(inner))
            outer = replace(outer, sub=_described(outer.sub, [below]))
        described[head.lower()] = outer or _describe(head, extra.attribute)
    return tuple(described.values())


def _describe(name: str, attribute: Attribute) -> Described:
    definition = attribute.definition
    return Described(
        name,
        definition["label"] or attribute.name,
        SCIM_TYPES.get(attribute.type, "string"),
        multiple=attribute.type == "multi_select",
        required=definition["required"],
        case_exact=True,
        choices=tuple(definition["options"].get("choices", ())),
    )


def from_resource(resource: JSONMapping, of: Sequence[Extra]) -> JSONObject:
    """The values that a resource sends, not yet checked."""
    found = {one.attribute.name: one.find(resource) for one in of}
    return {name: value for name, value in found.items() if value is not MISSING}


def from_operations(
    operations: Sequence[Operation], of: Sequence[Extra]
) -> tuple[list[Operation], JSONObject]:
    """The operations about other things, and the values that the others set."""
    rest, values = list[Operation](), dict[str, object]()
    for operation in operations:
        path = _plain(operation.path or "")
        sent: Mapping[str, object] = {path: operation.value}
        if operation.path is None and isinstance(operation.value, dict):
            sent = {_plain(key): value for key, value in operation.value.items()}
        found: JSONObject = {}
        for place, value in sent.items():
            for one in of:
                names = one.below(place)
                at = MISSING if names is None else _at(value, names)
                if names is not None and operation.op == REMOVE:
                    found[one.attribute.name] = None
                elif at is not MISSING:
                    found[one.attribute.name] = at
        values |= found
        is_own = any(one.below(path) == () or path == one.schema.lower() for one in of)
        if not path or not is_own:
            rest.append(operation)
    return rest, values


def _plain(path: str) -> str:
    """A path in lower case, without the schema of users."""
    return path.lower().removeprefix(f"{USER_SCHEMA.lower()}:")


def checked(values: JSONMapping) -> JSONObject:
    """What a directory sends, as it is stored; nothing takes a value away. Raises InvalidValues."""
    plain = {name: None if value in ("", []) else value for name, value in values.items()}
    level = attributes.Level.ADMIN
    return attribute_values.cleaned(Kind.USERS, plain, level) if plain else {}


def add_to(resource: JSONObject, user: User, of: Sequence[Extra]) -> None:
    """Add the values to a resource, where the directory sends them."""
    for one in of:
        if one.attribute.name not in user.attributes:
            continue
        target = resource
        if one.schema:
            if one.schema not in resource["schemas"]:
                resource["schemas"] = [*resource["schemas"], one.schema]
            target = resource.setdefault(one.schema, {})
        for name in one.names[:-1]:
            inner = target.get(name)
            target[name] = inner = dict(inner) if isinstance(inner, dict) else {}
            target = inner
        target.setdefault(one.names[-1], user.attributes[one.attribute.name])
