"""SCIM resources: users and groups, and the descriptions of what the service supports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from app import clock, config
from app.accounts.models import Group, User
from app.errors import NotFound
from app.sso.attributes import Extra, add_to, extended, extensions, extras
from app.sso.scim import schemas
from app.sso.scim.attributes import GROUP, RESOURCE_TYPES, USER, ResourceType
from app.sso.scim.models import DirectoryGroup, DirectoryUser
from app.types import JSONMapping, JSONObject

ROOT = "/scim/v2"
EMAIL = {"type": "work", "primary": True}  # where the directory says neither
CORE = "urn:ietf:params:scim:schemas:core:2.0"
LIST_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:ListResponse"


def location(kind: ResourceType, id: str) -> str:
    return f"{config.current().base_url}{ROOT}{kind.endpoint}/{id}"


def user_etag(user: User) -> str:
    """Return the weak ETag of a user."""
    return f'W/"{user.version}"'


def group_etag(group: Group, row: DirectoryGroup | None, member_ids: Sequence[str]) -> str:
    """Return the weak ETag of a group: its row has no version that its members change."""
    parts = (group.name, (row and row.external_id) or "", *sorted(member_ids))
    return f'W/"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}"'


def user(user: User, row: DirectoryUser | None, extras: Sequence[Extra] = ()) -> JSONObject:
    """Return a user as a resource, with the attributes that the directory fills."""
    stored = row.attributes if row else {}
    # Once the user or an admin has changed the name, theirs counts.
    is_from_directory = name_of(stored) == user.name
    resource = {
        **_common(USER, user.id, row.external_id if row else None),
        "userName": row.user_name if row else user.email,
        "name": stored.get("name"),
        "displayName": stored.get("displayName") if is_from_directory else user.name,
        "active": user.is_active,
        "emails": [{"value": user.email, **EMAIL, **stored.get("email", {})}],
        "groups": [
            {"value": one.id, "display": one.name, "$ref": location(GROUP, one.id)}
            for one in user.groups
        ],
        "meta": _meta(USER, user, user_etag(user)),
    }
    add_to(resource, user, extras)
    return _assigned(resource)


def name_of(attributes: JSONMapping) -> str | None:
    """Return the name that others see: `displayName`, else the parts of the name."""
    parts = attributes.get("name") or {}
    joined = " ".join(filter(None, (parts.get("givenName"), parts.get("familyName"))))
    return attributes.get("displayName") or parts.get("formatted") or joined or None


def group(group: Group, row: DirectoryGroup | None, member_ids: Sequence[str] | None) -> JSONObject:
    """Return a group as a resource; `member_ids` are None where the response leaves them out."""
    etag = None if member_ids is None else group_etag(group, row, member_ids)
    resource = {
        **_common(GROUP, group.id, row.external_id if row else None),
        "displayName": group.name,
        "members": [{"value": id, "$ref": location(USER, id)} for id in member_ids or ()],
        "meta": _meta(GROUP, group, etag),
    }
    return _assigned(resource)


def _common(kind: ResourceType, id: str, external_id: str | None) -> JSONObject:
    return {"schemas": [kind.schema], "id": id, "externalId": external_id}


def _meta(kind: ResourceType, stored: User | Group, etag: str | None) -> JSONObject:
    meta = {
        "resourceType": kind.name,
        "created": clock.iso(stored.created_at),
        "lastModified": clock.iso(stored.updated_at),
        "location": location(kind, stored.id),
        "version": etag,
    }
    return _assigned(meta)


def _assigned(values: JSONObject) -> JSONObject:
    """Leave out what has no value (RFC 7643, section 2.5)."""
    return {name: value for name, value in values.items() if value not in (None, [], {})}


def listing(items: Sequence[JSONObject], total: int, start: int) -> JSONObject:
    """Return a page of resources (RFC 7644, section 3.4.2)."""
    return {
        "schemas": [LIST_SCHEMA],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(items),
        "Resources": list(items),
    }


def service_provider_config() -> JSONObject:
    """Return the configuration of the service (RFC 7643, section 5)."""
    return {
        "schemas": [f"{CORE}:ServiceProviderConfig"],
        "patch": {"supported": True},
        "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": schemas.MAX_COUNT},
        "changePassword": {"supported": False},
        "sort": {"supported": False},
        "etag": {"supported": True},
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "Bearer token",
                "description": "A SCIM token of the account.",
                "primary": True,
            }
        ],
        "meta": _description_meta("ServiceProviderConfig", "/ServiceProviderConfig"),
    }


def resource_types() -> Sequence[JSONObject]:
    """Return the types of resources (RFC 7643, section 6)."""
    of_users = [{"schema": one.schema, "required": False} for one in extensions(extras())]
    return [
        {
            "schemas": [f"{CORE}:ResourceType"],
            "id": kind.name,
            "name": kind.name,
            "endpoint": kind.endpoint,
            "description": kind.description,
            "schema": kind.schema,
            **({"schemaExtensions": of_users} if kind is USER and of_users else {}),
            "meta": _description_meta("ResourceType", f"/ResourceTypes/{kind.name}"),
        }
        for kind in RESOURCE_TYPES
    ]


def schema_list() -> Sequence[JSONObject]:
    """Return the schemas of resources, and extensions for attributes (RFC 7643, section 7)."""
    of = extras()
    return [
        {**kind.describe(), "meta": _description_meta("Schema", f"/Schemas/{kind.schema}")}
        for kind in (extended(USER, of), GROUP, *extensions(of))
    ]


def one_of(listed: Sequence[JSONObject], id: str) -> JSONObject:
    """Return the resource type or schema with this id. Raises NotFound."""
    for item in listed:
        if item["id"] == id:
            return item
    raise NotFound("There is nothing of this id.")


def _description_meta(name: str, path: str) -> JSONObject:
    return {"resourceType": name, "location": f"{config.current().base_url}{ROOT}{path}"}
