"""The parts of the API description that all operations share: errors, credentials, headers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app import errors
from app.errors import AppError, Malformed
from app.types import JSONObject
from app.web import EXTENSIONS, serialization
from app.web.access import AccessLevel, ViewAccess

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
        "description": "An API key; a bearer token takes precedence.",
    },
}


def _header(name: str, description: str, example: str, **length: int) -> dict[str, object]:
    return {
        "in": "header",
        "name": name,
        "required": False,
        "schema": {"type": "string", **length},
        "description": description,
        "example": example,
    }


CALLERS = {
    AccessLevel.SIGNED_IN: "users",
    AccessLevel.ACCOUNT_ADMIN: "admins",
    AccessLevel.SUPERADMIN: "superadmins",
}


def access_sentences(access: ViewAccess, methods: Sequence[str] = ()) -> str:
    """Return what the description of an operation says of its callers; mostly nothing."""
    sentences = []
    callers = CALLERS.get(access.level)
    if access.recent_sign_in:
        with_recent = f"{callers} with a recent sign-in (403 `recent_sign_in_required`)"
        sentences.append(f"For {with_recent}, not for API keys.")
    elif not access.api_keys:
        sentences.append(f"For {callers}, not for API keys (403).")
    elif access.level in (AccessLevel.ACCOUNT_ADMIN, AccessLevel.SUPERADMIN):
        sentences.append(f"For {callers}.")
    if access.reads and access.api_keys:
        sentences.append("Read-only API keys may do this.")
    scopes = dict.fromkeys(filter(None, map(access.operator_scope, methods)))
    sentences += [f"Operator keys need `{scope}`." for scope in scopes]
    return " ".join(sentences)


ACTING_ACCOUNT = _header(
    "X-Account-ID",
    "The account to act in, by slug, code or id, unless the host name identifies it. Only for"
    " callers without credentials, superadmins and operator keys. Superadmins act in the system"
    " account without it, and read across all accounts with `*`. Everyone else acts in their own"
    " account.",
    "acme",
)
IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    "Makes a POST safe to retry: for 24 hours the same request with the same key runs once and gets"
    " the same response.",
    "3f0a6b1e-order-17",
    minLength=1,
    maxLength=255,
)
# An electronic signature needs a signer, a reason, and a password or passkey.
SIGNATURE = {
    "signer": _header(
        "X-ES-Username",
        "Signs this write electronically, together with X-ES-Password and X-ES-Reason: the e-mail"
        " address of a user of the account.",
        "alice@acme.example",
        maxLength=1000,
    ),
    "signers_password": _header(
        "X-ES-Password", "The signer's password.", "Correct-horse-1", maxLength=1000
    ),
    "signers_passkey": _header(
        "X-ES-Passkey",
        "Instead of the password: a passkey's signature (`POST /auth/signatures/options`).",
        "eyJ0b2tlbiI6ICIuLi4ifQ",
        maxLength=6000,
    ),
    "signing_reason": _header(
        "X-ES-Reason",
        "The reason, stored in the audit log.",
        "Approved at the weekly review",
        maxLength=1000,
    ),
}

ERROR_EXAMPLES: dict[int, AppError] = {
    400: errors.InvalidValues([errors.problem("email", "invalid_email", "Is not an address.")]),
    401: errors.Unauthorized(),
    403: errors.Forbidden(),
    404: errors.NotFound(),
    405: errors.ViewReadOnly(),
    409: errors.Conflict(field="name"),
    410: errors.FeedExpired(12),
    412: errors.PreconditionFailed(),
    413: errors.PayloadTooLarge(),
    414: AppError("The URL is too long.", error="uri_too_long"),
    415: errors.UnsupportedMediaType(),
    422: Malformed.at("body", "name", msg="Missing data for required field.", type="missing"),
    416: errors.RangeNotSatisfiable(20480),
    426: errors.UpgradeRequired(),
    428: errors.SignatureRequired(),
    429: errors.TooManyRequests(60),
    501: errors.RealtimeUnavailable(),
    503: errors.Unavailable(),
}
ERROR_MEANINGS = {
    400: "Values break validation rules; `details` lists all of them.",
    401: "No valid credential.",
    403: "The caller may not do this.",
    404: "Not found in this account.",
    405: "The collection is a view, which is only read.",
    409: "A conflict with stored data.",
    410: "Changes after `since` are not kept any more.",
    412: "The record's ETag does not fit If-Match or If-None-Match.",
    413: "The request or the response body is too large.",
    414: "The URL, including its query, is longer than 8,190 bytes.",
    415: "The media type of the body is not supported.",
    416: "The file has no such part.",
    422: "The request does not match the documented schema; `detail` lists every problem.",
    426: "Not a WebSocket handshake of version 13.",
    428: "The collection requires an electronic signature for writes.",
    429: "Too many requests; `Retry-After` gives the seconds to wait.",
    501: "This server cannot serve streams.",
    503: "Briefly unavailable; `Retry-After` gives the seconds to wait.",
}
# The names of the shared responses.
ERROR_NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "ContentTooLarge",
    414: "UriTooLong",
    415: "UnsupportedMediaType",
    416: "RangeNotSatisfiable",
    422: "UnprocessableContent",
    426: "UpgradeRequired",
    428: "SignatureRequired",
    429: "TooManyRequests",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
WAIT = {
    "Retry-After": {
        "description": "The seconds to wait.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
# Below these paths browsers get an HTML page.
PAGES = ("/auth/", "/oauth/", "/saml/")
PAGE_EXAMPLE = "<!doctype html>..."
PAGE = {"text/html": {"schema": {"type": "string"}, "example": PAGE_EXAMPLE}}
SHOWN_AS_PAGE = (400, 401, 403, 404, 409, 413, 415, 422, 429)


def error_name(rule: str, code: int) -> str:
    """Return the name of the shared response for an error code."""
    as_page = rule.startswith(PAGES) and code in SHOWN_AS_PAGE
    return f"{ERROR_NAMES[code]}Page" if as_page else ERROR_NAMES[code]


def _error_response(code: int, **contents: JSONObject) -> JSONObject:
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    json = {"schema": schema, "example": ERROR_EXAMPLES[code].body()}
    response = {
        "description": ERROR_MEANINGS[code],
        "content": {"application/json": json, **contents},
    }
    return response | ({"headers": WAIT} if code in (429, 503) else {})


ERRORS = {name: _error_response(code) for code, name in ERROR_NAMES.items()} | {
    f"{ERROR_NAMES[code]}Page": _error_response(code, **PAGE) for code in SHOWN_AS_PAGE
}

PATH_PARAMETERS = {
    "factor_id": "Id of a second factor.",
    "account_code": "The account's code, such as `AA0001`.",
    "account_id": "The account's id.",
    "category": "`auth_providers` for OAuth 2.0, `saml_providers` for SAML 2.0.",
    "collection": "The collection's name.",
    "collection_id": "The collection's id.",
    "collection_name": "The collection's name.",
    "saml_key_id": "The id of the SAML key pair.",
    "configuration_id": "The id of the provider's settings.",
    "kind": "A kind of mails, such as `reset_password`.",
    "language": "A language, such as `en`.",
    "template_name": "The account template's name.",
    "template_job_id": "The job's id.",
    "domain_id": "The domain's id.",
    "export_id": "The export's id.",
    "delivery_id": "The delivery's id.",
    "explain_id": "The `explain_id` of a 403.",
    "entry_id": "The audit entry's id.",
    "file_id": "The file's id.",
    "group_id": "The group's id.",
    "hook_id": "The hook's id.",
    "instance_id": "The workflow instance's id.",
    "invitation": "The invitation's id, or the token of its link.",
    "key_id": "The API key's id.",
    "provider": "The provider's name, such as `google` or `okta`, or its slug.",
    "provider_name": "The provider's name, such as `google`, or its slug.",
    "record_id": "The record's id.",
    "role_id": "The role's id.",
    "scim_token_id": "The SCIM token's id.",
    "setup_link_id": "The setup link's id.",
    "session_id": "The session's id.",
    "token": "The token of the link.",
    "user_id": "The user's id.",
    "webhook_id": "The webhook's id.",
    "workflow_id": "The workflow's id.",
}


def path_parameters(rule: str) -> list[JSONObject]:
    """Return the descriptions of a route's parameters."""
    names = re.findall(r"<(?:\w+:)?(\w+)>", rule)
    known = PATH_PARAMETERS
    if rule.startswith(f"{EXTENSIONS}/"):  # their names tell as much
        known = {name: f"{name.replace('_', ' ').capitalize()}." for name in names} | known
    return [{"in": "path", "name": name, "description": known[name]} for name in names]


def options(base_url: str) -> JSONObject:
    """Return the general part of the API description."""
    description = (
        "A multi-tenant backend service: accounts with their own users, collections with typed"
        " fields, and a REST API for their records. Every path works with and without a trailing"
        " slash. Every response has an `X-Correlation-ID`. Responses to authenticated requests are"
        " `Cache-Control: no-store`; those with an `ETag` are `private, no-cache`. If requests are"
        " rate-limited, any operation may return 429 `rate_limited` with `Retry-After`, the seconds"
        " to wait. A write may be signed electronically with `X-ES-Username` (the e-mail address of"
        " a user of the account), `X-ES-Reason`, and `X-ES-Password` or `X-ES-Passkey`; the"
        " audit log stores signer and reason.\n\nAn authenticated POST, except below `/auth/`, may"
        " send an"
        " `Idempotency-Key` of up to 255 characters. For 24 hours a retry with the same key gets"
        " the same status and body (with `Idempotent-Replayed: true`), and the request runs once. A"
        " different request with the same key is a 422; one that is still running is a 409"
        " `in_progress`. A response that shows a secret is not saved: the retry is a 409"
        " `already_done` with the `id` of the created object. A failed request may be retried with"
        " its key.\n\nJSON may have up to"
        f" {serialization.MAX_DEPTH} levels, {serialization.MAX_PROPERTIES:,} properties per object"
        f" and {serialization.MAX_VALUES:,} values, and its strings no NUL and no lone surrogates;"
        " a 422"
        " names the limit. 64-bit integers are exact; all other numbers are IEEE doubles. A number"
        " beyond the doubles, such as `1e400`, is a 400 `number_out_of_range` in a record, else a"
        " 422. The 413 for a body that is too large names the limit, which is lower without a"
        f" credential. Of more than {errors.MAX_LISTED} problems only the first are listed, with"
        " the `count` of all.\n\nDirectories provision users and groups by SCIM 2.0 at `/scim/v2`,"
        " which describes itself at `/scim/v2/Schemas`."
    )
    parameters = {"account": ACTING_ACCOUNT, "repeating": IDEMPOTENCY_KEY, **SIGNATURE}
    return {
        "info": {
            "description": description,
            "contact": {"name": "The operator of this instance", "url": base_url},
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": base_url}],
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "parameters": parameters,
            "responses": ERRORS,
        },
    }
