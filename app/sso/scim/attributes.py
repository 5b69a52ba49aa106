"""The attributes of SCIM resources (RFC 7643), in one table for schemas, paths and answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from app.types import JSONMapping, JSONObject

USER_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Group"
READ_ONLY, READ_WRITE = "readOnly", "readWrite"
ALWAYS = ("schemas", "id")  # whatever `excludedAttributes` says


@dataclass(frozen=True)
class Attribute:
    """An attribute of a resource, or of a complex attribute."""

    name: str
    description: str
    type: str = "string"
    multiple: bool = False
    required: bool = False
    mutability: str = READ_WRITE
    uniqueness: str = "none"
    case_exact: bool = False
    sub: tuple[Attribute, ...] = ()
    references: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def describe(self) -> JSONObject:
        """Return the attribute as in RFC 7643, section 7."""
        described: JSONObject = {
            "name": self.name,
            "type": self.type,
            "multiValued": self.multiple,
            "description": self.description,
            "required": self.required,
            "mutability": self.mutability,
            "returned": "default",
        }
        if self.type in ("string", "reference"):
            described |= {"caseExact": self.case_exact, "uniqueness": self.uniqueness}
        if self.choices:
            described["canonicalValues"] = list(self.choices)
        if self.references:
            described["referenceTypes"] = list(self.references)
        if self.sub:
            described["subAttributes"] = [one.describe() for one in self.sub]
        return described


@dataclass(frozen=True)
class ResourceType:
    """A type of resources, with the endpoint and the schema of it."""

    name: str
    endpoint: str
    schema: str
    description: str
    attributes: tuple[Attribute, ...]

    def find(self, name: str) -> Attribute | None:
        """Return the attribute of this name, in any case; None if the type has none."""
        return find((*self.attributes, *COMMON), name)

    def describe(self) -> JSONObject:
        """Return the schema as in RFC 7643, section 7."""
        return {
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Schema"],
            "id": self.schema,
            "name": self.name,
            "description": self.description,
            "attributes": [attribute.describe() for attribute in self.attributes],
        }


COMMON = (
    Attribute("schemas", "The schemas.", multiple=True, mutability=READ_ONLY),
    Attribute("id", "The id.", mutability=READ_ONLY, case_exact=True),
    Attribute("externalId", "The id in the directory.", case_exact=True),
    Attribute(
        "meta",
        "What the service says of it.",
        "complex",
        mutability=READ_ONLY,
        sub=(
            Attribute("created", "When it was created.", "dateTime", mutability=READ_ONLY),
            Attribute("lastModified", "When it changed.", "dateTime", mutability=READ_ONLY),
        ),
    ),
)
USER = ResourceType(
    "User",
    "/Users",
    USER_SCHEMA,
    "A user of the account",
    (
        Attribute(
            "userName",
            "The name in the directory, usually the address; unique in the account.",
            required=True,
            uniqueness="server",
        ),
        Attribute(
            "name",
            "The parts of the name.",
            "complex",
            sub=(
                Attribute("formatted", "The whole name."),
                Attribute("givenName", "The given name."),
                Attribute("familyName", "The family name."),
            ),
        ),
        Attribute("displayName", "The name that others see; by default the parts of the name."),
        Attribute("active", "Whether the user may sign in.", "boolean", required=True),
        Attribute(
            "emails",
            "The address; without it `userName` has to be one.",
            "complex",
            multiple=True,
            required=True,
            sub=(
                Attribute("value", "The address.", required=True),
                Attribute("type", "Its kind; `work` by default."),
                Attribute("primary", "True by default: a user has one address.", "boolean"),
            ),
        ),
        Attribute(
            "groups",
            "The groups that the user is in.",
            "complex",
            multiple=True,
            mutability=READ_ONLY,
            sub=(
                Attribute("value", "The group's id.", mutability=READ_ONLY, case_exact=True),
                Attribute("display", "The group's name.", mutability=READ_ONLY),
                Attribute(
                    "$ref",
                    "The group's address.",
                    "reference",
                    mutability=READ_ONLY,
                    references=("Group",),
                ),
            ),
        ),
    ),
)
GROUP = ResourceType(
    "Group",
    "/Groups",
    GROUP_SCHEMA,
    "A group of the account",
    (
        Attribute("displayName", "The group's name.", required=True, uniqueness="server"),
        Attribute(
            "members",
            "The users in the group.",
            "complex",
            multiple=True,
            sub=(
                Attribute("value", "The user's id.", mutability="immutable", case_exact=True),
                Attribute(
                    "$ref",
                    "The user's address.",
                    "reference",
                    mutability="immutable",
                    references=("User",),
                ),
            ),
        ),
    ),
)
RESOURCE_TYPES = (USER, GROUP)


def find(attributes: Sequence[Attribute], name: str) -> Attribute | None:
    """Return the attribute of this name, in any case (RFC 7643, section 2.1)."""
    return next((one for one in attributes if one.name.lower() == name.lower()), None)


def canonical(resource: JSONMapping, kind: ResourceType) -> JSONObject:
    """Return a resource with the names of its known attributes in their own case, and no others."""
    return dict(_canonical(resource, (*kind.attributes, *COMMON)))


def _canonical(
    values: JSONMapping, attributes: Sequence[Attribute]
) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        attribute = find(attributes, name)
        if attribute is not None:
            yield attribute.name, canonical_value(value, attribute)


def canonical_value(value: object, attribute: Attribute) -> object:
    """Return a value of an attribute, with the names of its parts in their own case."""
    if attribute.sub and isinstance(value, dict):
        return dict(_canonical(value, attribute.sub))
    if attribute.sub and isinstance(value, list):
        return [
            canonical_value(item, attribute) if isinstance(item, dict) else item for item in value
        ]
    return value


def parse_names(text: str, kind: ResourceType) -> Sequence[str]:
    """Parse a query parameter that lists attributes: lower case, without the schema's URN."""
    names = (name.strip().lower() for name in text.split(","))
    return [name.removeprefix(f"{kind.schema.lower()}:") for name in names if name]


def select(resource: JSONMapping, names: Sequence[str], excluded: Sequence[str]) -> JSONObject:
    """Return the attributes that the query parameters ask for (RFC 7644, section 3.9)."""
    answer: JSONObject = {}
    for name, value in resource.items():
        named, left_out = _parts(names, name), _parts(excluded, name)
        if name in ALWAYS or "" in named or not (names or left_out):
            answer[name] = value
        elif names and named:
            answer[name] = _reduce(value, named, keep=True)
        elif not names and "" not in left_out:
            answer[name] = _reduce(value, left_out, keep=False)
    return answer


def _parts(names: Collection[str], attribute: str) -> set[str]:
    """Return the parts of an attribute, or of an extension, that are named; "" for the whole."""
    key = attribute.lower()
    inside = {name[len(key) + 1 :] for name in names if name.startswith((f"{key}.", f"{key}:"))}
    return inside | ({""} if key in names else set())


def _reduce(value: object, parts: set[str], *, keep: bool) -> object:
    if isinstance(value, list):
        return [_reduce(item, parts, keep=keep) for item in value]
    if not isinstance(value, dict):
        return value
    reduced: JSONObject = {}
    for name, one in value.items():
        inner = _parts(parts, name)
        if inner and "" not in inner:
            reduced[name] = _reduce(one, inner, keep=keep)
        elif bool(inner) == keep:
            reduced[name] = one
    return reduced
