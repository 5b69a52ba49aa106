"""CORS headers.

Allowed origins come from the settings and from the account of the caller. Credentials are never
allowed: browser applications send tokens, not cookies.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Request, Response

from app import config, web

METHODS = "GET, POST, PUT, PATCH, DELETE"
HEADERS = "Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, X-Account-ID"
HEADERS += ", X-API-Key, X-Correlation-ID, X-ES-Username, X-ES-Password, X-ES-Passkey"
HEADERS += ", X-ES-Reason, Range, If-Range, Last-Event-ID, Prefer"
HEADERS += ", traceparent, tracestate, baggage"  # browsers' tracing adds them to every call
EXPOSED = "ETag, X-Correlation-ID, Retry-After, WWW-Authenticate, Content-Disposition"
EXPOSED += ", Content-Range, Accept-Ranges, Idempotent-Replayed, Preference-Applied"
EXPOSED += ", X-Service-Masked-Fields, X-Service-Values-Masked, X-Service-Values-Erased"
PREFLIGHT_SECONDS = "600"


def answer_preflight(request: Request) -> Response | None:
    """The answer to a preflight request; None for other OPTIONS requests."""
    if not request.path.startswith(web.PREFIX):
        return None
    if "HTTP_ACCESS_CONTROL_REQUEST_METHOD" not in request.environ:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
    return response


def allow_origin(
    origin: str, request: Request, response: Response, account_allows: Callable[[str], bool]
) -> None:
    """Let scripts of an allowed origin read the response.

    `account_allows` is asked for the origins that the settings do not name.
    """
    if not request.path.startswith(web.PREFIX):
        return
    if origin in config.current().cors_origins or account_allows(origin):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = METHODS
            response.headers["Access-Control-Allow-Headers"] = HEADERS
