"""Refusals with the `scimType` of RFC 7644, section 3.12."""

from __future__ import annotations

from app.errors import AppError, BadRequest, Conflict, InvalidValues, Malformed
from app.types import JSONObject

SCHEMA = "urn:ietf:params:scim:api:messages:2.0:Error"
MAX_DETAIL = 1000
UNIQUENESS = "uniqueness"


def refusal(scim_type: str, message: str) -> BadRequest:
    """Return a 400 with a `scimType` of the RFC."""
    return BadRequest(message, scim_type=scim_type)


def invalid_value(message: str) -> BadRequest:
    """Return a 400 for a value that is missing, of another type or out of bounds."""
    return refusal("invalidValue", message)


def not_changeable(message: str) -> BadRequest:
    """Return a 400 for what the directory may not change."""
    return refusal("mutability", message)


def not_unique(message: str) -> Conflict:
    """Return a 409 for a name that another resource has."""
    return Conflict(message, scim_type=UNIQUENESS)


def status_of(error: AppError) -> int:
    """Return the status of an error: the RFC has no 422."""
    return 400 if isinstance(error, Malformed) else error.status


def body(error: AppError) -> JSONObject:
    """Return the body of an error (RFC 7644, section 3.12), with the messages of its fields."""
    scim_type, detail = error.extra.get("scim_type"), error.message
    if isinstance(error, InvalidValues):
        scim_type = scim_type or "invalidValue"
        detail = " ".join(f"{one['field']}: {one['message']}" for one in error.details)
    elif isinstance(error, Malformed):
        scim_type = scim_type or "invalidSyntax"
        detail = " ".join(str(one["msg"]) for one in error.extra["detail"])
    elif isinstance(error, Conflict) and "field" in error.extra:
        scim_type = scim_type or UNIQUENESS
    described = {"schemas": [SCHEMA], "status": str(status_of(error))}
    if scim_type:
        described["scimType"] = scim_type
    return described | {"detail": detail[:MAX_DETAIL]}
