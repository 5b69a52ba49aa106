"""Attributes of users that a provider or a directory fills, as their definitions say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.accounts import attributes
from app.accounts.attributes import Attribute, Kind
from app.accounts.models import User
from app.collections import attribute_values
from app.collections.fields import Field, InvalidValue
from app.sso.scim.attributes import USER_SCHEMA
from app.sso.scim.patch import REMOVE, Operation
from app.types import JSONMapping, JSONObject

MISSING = object()


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

    @property
    def path(self) -> str:
        """Its path in lower case, without the schema of users."""
        prefix = f"{self.schema}:" if self.schema else ""
        return f"{prefix}{'.'.join(self.names)}".lower()

    def find(self, resource: JSONMapping) -> object:
        """The value that a resource has; MISSING if it says nothing."""
        value: object = resource
        for name in (*([self.schema] if self.schema else []), *self.names):
            if not isinstance(value, Mapping):
                return MISSING
            folded = {key.lower(): one for key, one in value.items()}
            value = folded.get(name.lower(), MISSING)
        return value


def extras() -> Sequence[Extra]:
    """The attributes that SCIM fills."""
    return list(_extras())


def _extras() -> Iterator[Extra]:
    for one in attributes.load(Kind.USERS).by_name.values():
        if source := one.definition["scim"]:
            schema, _, name = source.rpartition(":")
            core = schema.lower() in ("", USER_SCHEMA.lower())
            yield Extra(one, "" if core else schema, tuple(name.split(".")))


def from_resource(resource: JSONMapping, of: Sequence[Extra]) -> JSONObject:
    """The values that a resource sends, not yet checked."""
    found = {one.attribute.name: one.find(resource) for one in of}
    return {name: value for name, value in found.items() if value is not MISSING}


def from_operations(
    operations: Sequence[Operation], of: Sequence[Extra]
) -> tuple[list[Operation], JSONObject]:
    """The operations about other things, and the values that the others set."""
    rest, values = list[Operation](), dict[str, object]()
    by_path = {one.path: one.attribute.name for one in of}
    for operation in operations:
        path = (operation.path or "").lower().removeprefix(f"{USER_SCHEMA.lower()}:")
        if path in by_path:
            values[by_path[path]] = None if operation.op == REMOVE else operation.value
            continue
        schema = next((one.schema for one in of if one.schema and one.schema.lower() == path), "")
        if schema and operation.op == REMOVE:
            values |= {one.attribute.name: None for one in of if one.schema == schema}
        elif schema:
            values |= from_resource({schema: operation.value}, of)
        else:
            rest.append(operation)
        if operation.path is None and isinstance(operation.value, dict):
            values |= from_resource(operation.value, of)
            folded = {key.lower(): value for key, value in operation.value.items()}
            values |= {name: folded[one] for one, name in by_path.items() if one in folded}
    return rest, values


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
