"""CORS headers (contract section 1).

Allowed origins come from the settings and from the account of the caller. Credentials are never
allowed: browser applications send tokens, not cookies.
"""

from __future__ import annotations

from flask import Request, Response, g

from app import config, rest
from app.auth import principal as principals

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
    if not request.path.startswith(rest.PREFIX):
        return None
    if "HTTP_ACCESS_CONTROL_REQUEST_METHOD" not in request.environ:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
    return response


def allow_origin(origin: str, request: Request, response: Response) -> None:
    """Let scripts of an allowed origin read the response."""
    if not request.path.startswith(rest.PREFIX):
        return
    preflight = request.method == "OPTIONS"
    if origin in config.current().cors_origins or _account_allows(origin, preflight):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if preflight:
            response.headers["Access-Control-Allow-Methods"] = METHODS
            response.headers["Access-Control-Allow-Headers"] = HEADERS


def _account_allows(origin: str, preflight: bool) -> bool:
    # Preflights and sign-ins carry no credential, so the origin of any account may send them.
    # Data of an account is readable only from that account's origins.
    caller = None if preflight else g.get("principal")
    if caller is None:
        return "\0" not in origin and principals.is_allowed_origin(origin)
    return caller.account is not None and origin in caller.account.cors_origins
