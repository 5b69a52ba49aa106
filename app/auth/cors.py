"""CORS headers (contract section 1).

Allowed origins come from the settings and from the account of the caller. Credentials are never
allowed: browser applications send tokens, not cookies.
"""

from __future__ import annotations

from flask import Flask, Response, g

from app import config, rest
from app.auth import principal as principals
from app.rest.current_request import get_header, get_request

METHODS = "GET, POST, PUT, PATCH, DELETE"
HEADERS = "Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, X-Account-ID"
HEADERS += ", X-API-Key, X-Correlation-ID, X-ES-Username, X-ES-Password, X-ES-Reason"
EXPOSED = "ETag, X-Correlation-ID, Retry-After"
PREFLIGHT_SECONDS = "600"


def init_app(app: Flask) -> None:
    """Answer preflight requests and add CORS headers to every response."""
    app.before_request(_answer_preflight)
    app.after_request(_allow)


def _answer_preflight() -> Response | None:
    request = get_request()
    if request.method != "OPTIONS" or not request.path.startswith(rest.PREFIX):
        return None
    if get_header("Access-Control-Request-Method") is None:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
    return response


def _allow(response: Response) -> Response:
    request = get_request()
    if not request.path.startswith(rest.PREFIX):
        return response
    before = response.headers.get("Vary")
    response.headers["Vary"] = f"{before}, Origin" if before else "Origin"
    origin = get_header("Origin") or ""
    preflight = request.method == "OPTIONS"
    if origin and (origin in config.current().cors_origins or _account_allows(origin, preflight)):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        if preflight:
            response.headers["Access-Control-Allow-Methods"] = METHODS
            response.headers["Access-Control-Allow-Headers"] = HEADERS
    return response


def _account_allows(origin: str, preflight: bool) -> bool:
    # Preflights and sign-ins carry no credential, so the origin of any account may send them.
    # Data of an account is readable only from that account's origins.
    caller = None if preflight else g.get("principal")
    if caller is None:
        return "\0" not in origin and principals.is_allowed_origin(origin)
    return caller.account is not None and origin in caller.account.cors_origins
