"""Users and groups as SCIM resources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from app import clock, config
from app.accounts.models import Group, User
from app.sso.scim.attributes import GROUP, USER, ResourceType
from app.sso.scim.models import DirectoryGroup, DirectoryUser
from app.types import JSONMapping, JSONObject

ROOT = "/scim/v2"
EMAIL = {"type": "work", "primary": True}  # where the directory says neither
LIST_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:ListResponse"


def location(kind: ResourceType, id: str) -> str:
    return f"{config.current().base_url}{ROOT}{kind.endpoint}/{id}"


def user_etag(user: User) -> str:
    """The weak ETag of a user."""
    return f'W/"{user.version}"'


def group_etag(group: Group, row: DirectoryGroup | None, member_ids: Sequence[str]) -> str:
    """The weak ETag of a group: its row has no version that its members change."""
    parts = (group.name, (row and row.external_id) or "", *sorted(member_ids))
    return f'W/"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}"'


def user(user: User, row: DirectoryUser | None) -> JSONObject:
    """A user as a resource."""
    stored = row.attributes if row else {}
    resource = {
        **_common(USER, user.id, row.external_id if row else None),
        "userName": row.user_name if row else user.email,
        "name": stored.get("name"),
        "displayName": _display_name(user, stored),
        "active": user.is_active,
        "emails": [{"value": user.email, **EMAIL, **stored.get("email", {})}],
        "groups": [
            {"value": one.id, "display": one.name, "$ref": location(GROUP, one.id)}
            for one in user.groups
        ],
        "meta": _meta(USER, user.id, user.created_at, user.updated_at, user_etag(user)),
    }
    return _assigned(resource)


def name_of(attributes: JSONMapping) -> str | None:
    """The name that others see: `displayName`, else the parts of the name."""
    parts = attributes.get("name") or {}
    joined = " ".join(filter(None, (parts.get("givenName"), parts.get("familyName"))))
    return attributes.get("displayName") or parts.get("formatted") or joined or None


def _display_name(user: User, stored: JSONMapping) -> str | None:
    if name_of(stored) == user.name:
        name: str | None = stored.get("displayName")
        return name
    return user.name  # the user or an admin has changed it since


def group(group: Group, row: DirectoryGroup | None, member_ids: Sequence[str] | None) -> JSONObject:
    """A group as a resource; `member_ids` are None where the answer leaves them out."""
    etag = None if member_ids is None else group_etag(group, row, member_ids)
    resource = {
        **_common(GROUP, group.id, row.external_id if row else None),
        "displayName": group.name,
        "members": [{"value": id, "$ref": location(USER, id)} for id in member_ids or ()],
        "meta": _meta(GROUP, group.id, group.created_at, group.updated_at, etag),
    }
    return _assigned(resource)


def listing(items: Sequence[JSONObject], total: int, start: int) -> JSONObject:
    """A page of resources (RFC 7644, section 3.4.2)."""
    return {
        "schemas": [LIST_SCHEMA],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(items),
        "Resources": list(items),
    }


def _common(kind: ResourceType, id: str, external_id: str | None) -> JSONObject:
    return {"schemas": [kind.schema], "id": id, "externalId": external_id}


def _meta(
    kind: ResourceType, id: str, created: datetime, changed: datetime, etag: str | None
) -> JSONObject:
    meta = {
        "resourceType": kind.name,
        "created": clock.iso(created),
        "lastModified": clock.iso(changed),
        "location": location(kind, id),
        "version": etag,
    }
    return _assigned(meta)


def _assigned(values: JSONObject) -> JSONObject:
    """Without what has no value (RFC 7643, section 2.5)."""
    return {name: value for name, value in values.items() if value not in (None, [], {})}
