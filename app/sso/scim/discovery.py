"""What the service supports: `/ServiceProviderConfig`, `/ResourceTypes`, `/Schemas` (RFC 7643)."""

from __future__ import annotations

from collections.abc import Sequence

from app import config
from app.errors import NotFound
from app.sso.scim import resources, schemas
from app.sso.scim.attributes import RESOURCE_TYPES, ResourceType
from app.types import JSONObject

CORE = "urn:ietf:params:scim:schemas:core:2.0"


def service_provider_config() -> JSONObject:
    """The configuration of the service (RFC 7643, section 5)."""
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
        "meta": _meta("ServiceProviderConfig", "/ServiceProviderConfig"),
    }


def resource_types() -> Sequence[JSONObject]:
    """The types of resources (RFC 7643, section 6)."""
    return [_resource_type(kind) for kind in RESOURCE_TYPES]


def schema_list() -> Sequence[JSONObject]:
    """The schemas of resources (RFC 7643, section 7)."""
    return [
        {**kind.describe(), "meta": _meta("Schema", f"/Schemas/{kind.schema}")}
        for kind in RESOURCE_TYPES
    ]


def one_of(listed: Sequence[JSONObject], id: str) -> JSONObject:
    """The type or schema with this id. Raises NotFound."""
    for item in listed:
        if item["id"] == id:
            return item
    raise NotFound("There is nothing of this id.")


def _resource_type(kind: ResourceType) -> JSONObject:
    return {
        "schemas": [f"{CORE}:ResourceType"],
        "id": kind.name,
        "name": kind.name,
        "endpoint": kind.endpoint,
        "description": kind.description,
        "schema": kind.schema,
        "meta": _meta("ResourceType", f"/ResourceTypes/{kind.name}"),
    }


def _meta(name: str, path: str) -> JSONObject:
    address = f"{config.current().base_url}{resources.ROOT}{path}"
    return {"resourceType": name, "location": address}
