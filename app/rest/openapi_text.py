"""What the API description says of all operations alike: errors, credentials, headers."""

from __future__ import annotations

from typing import Any

from app import errors
from app.errors import AppError, Malformed
from app.rest import json_input

WRITING = ("post", "put", "patch", "delete")

SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An access token or an API key.",
    },
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "An API key; a bearer token counts before it.",
    },
}


def _header(name: str, description: str, example: str, **length: int) -> Any:
    return {
        "in": "header",
        "name": name,
        "required": False,
        "schema": {"type": "string", **length},
        "description": description,
        "example": example,
    }


ACTING_ACCOUNT = _header(
    "X-Account-ID",
    "The account to act in, by slug, code or id, where the host name does not tell it: for"
    " callers not signed in, and for superadmins. Without it these act in the system account,"
    " with `*` they read across all. Others have their own account.",
    "acme",
)
IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    "For 24 hours the same request of the same caller under the same key gets the same answer, and"
    " is carried out once.",
    "3f0a6b1e-order-17",
    minLength=1,
    maxLength=255,
)
# The three of an electronic signature: all of them, or none.
SIGNATURE = {
    "signer": _header(
        "X-ES-Username",
        "Signs this write electronically, with the other two: the address of a user of the account"
        " written in.",
        "alice@acme.example",
        maxLength=1000,
    ),
    "signers_password": _header(
        "X-ES-Password", "The password of who signs.", "Correct-horse-1", maxLength=1000
    ),
    "signing_reason": _header(
        "X-ES-Reason",
        "Why: the audit log keeps it.",
        "Approved at the weekly review",
        maxLength=1000,
    ),
}

ERROR_EXAMPLES: dict[int, AppError] = {
    400: errors.InvalidValues([errors.problem("email", "invalid_email", "Is not an address.")]),
    401: errors.Unauthorized(),
    403: errors.Forbidden(),
    404: errors.NotFound(),
    409: errors.Conflict(field="name"),
    412: errors.PreconditionFailed(),
    413: AppError("The body is larger than this service takes.", error="payload_too_large"),
    415: errors.UnsupportedMediaType(),
    422: Malformed.at("body", "name", msg="Missing data for required field.", type="missing"),
    428: errors.SignatureRequired(),
    429: errors.TooManyRequests(60),
}
ERROR_MEANINGS = {
    400: "A value breaks a domain rule; `details` lists all of them.",
    401: "No valid credential.",
    403: "The caller may not do this.",
    404: "No such thing in this account.",
    409: "A clash with what is stored.",
    412: "The record is not any more as If-Match says.",
    413: "The body is too large, or the answer would be.",
    415: "The body is in a form that is not read here.",
    422: "The request does not have the documented shape; `detail` lists every place.",
    428: "The collection demands that writes are signed electronically, and this one is not.",
    429: "Too many tries; `Retry-After` says how many seconds to wait.",
}
# The name of the answer that all operations share.
URI_TOO_LONG = "UriTooLong"
SHARED = {
    URI_TOO_LONG: {
        "description": "The address, with its query, has more than 8,190 bytes.",
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/Error"},
                "example": AppError("The address is too long.", error="uri_too_long").body(),
            }
        },
    }
}
WAIT = {
    "Retry-After": {
        "description": "The seconds to wait.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


def error_response(code: int, schema: Any) -> dict[str, Any]:
    """The answer of an operation that fails so."""
    told = {
        "schema": schema,
        "description": ERROR_MEANINGS[code],
        "example": ERROR_EXAMPLES[code].body(),
        "content_type": None,
    }
    return told | ({"headers": WAIT} if code == 429 else {})


# Below these, browsers are told what is wrong by a page.
PAGES = ("/auth/", "/oauth/", "/saml/")
PAGE_EXAMPLE = "<!doctype html>..."


def error_responses(rule: str, code: int, schema: Any) -> list[dict[str, Any]]:
    """The answers of an operation that fails so: to clients, and to browsers where they come."""
    page = {
        "schema": {"type": "string"},
        "description": ERROR_MEANINGS[code],
        "example": PAGE_EXAMPLE,
        "content_type": "text/html",
    }
    return [error_response(code, schema), *([page] if rule.startswith(PAGES) else [])]


def options(base_url: str) -> dict[str, Any]:
    """What the API description says of the whole."""
    description = (
        "A multi-tenant backend service: accounts with their own users, collections with typed"
        " fields, and a REST API over their records. Every path answers with and without a"
        " trailing slash. Every answer carries `X-Correlation-ID`. Answers to a credential are"
        " `Cache-Control: no-store`; one with an `ETag` is `private, no-cache`."
        " Where requests are limited, any operation may answer 429 `rate_limited` with"
        " `Retry-After`, the seconds to wait. A write"
        " may be signed electronically: `X-ES-Username` (the address of a user of the account),"
        " `X-ES-Password`, `X-ES-Reason`; the audit log keeps who and why.\n\nA POST of somebody"
        " signed in, but for those under `/auth/`, may carry an `Idempotency-Key` of up to 255"
        " characters. For 24 hours the same request under the same key then gets the same status"
        " and body again (with `Idempotent-Replayed: true`), and is carried out once. Another"
        " request under the same key is a 422; one that is still running a 409 `in_progress`. An"
        " answer that shows a secret is not kept: its repeat is a 409 `already_done` with the `id`"
        " of what was made. What failed may be tried again under its key.\n\nJSON has at"
        f" most {json_input.MAX_DEPTH} levels, {json_input.MAX_PROPERTIES:,} properties in one"
        " object"
        f" and {json_input.MAX_VALUES:,} values, and neither NUL nor lone surrogates in its texts:"
        " else it is a 422 that names the limit. Whole numbers of 64 bits are exact; all others are"
        " IEEE doubles, however they are written. A number that no double holds, such as `1e400`,"
        " is a 400 `number_out_of_range` in a record, else a 422. Bodies have at most as many bytes"
        " as the 413 of a larger one says: fewer where no credential is needed. Of more than"
        f" {errors.MAX_LISTED} problems the first are listed, with their `count`."
    )
    parameters = {"account": ACTING_ACCOUNT, "repeating": IDEMPOTENCY_KEY, **SIGNATURE}
    return {
        "info": {"description": description, "license": {"name": "MIT", "identifier": "MIT"}},
        "servers": [{"url": base_url}],
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "parameters": parameters,
            "responses": SHARED,
        },
    }
