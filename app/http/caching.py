"""`Cache-Control` and `Vary` headers (RFC 9111)."""

from __future__ import annotations

from flask import Flask, Response

from app import rest
from app.rest.current_request import get_header, get_request

# With the Origin, which CORS depends on.
VARY = "Authorization, X-API-Key, X-Account-ID"
READING = ("GET", "HEAD")


def init_app(app: Flask) -> None:
    """Add the headers to API responses; pages and static files set their own."""
    app.after_request(_add_headers)


def _add_headers(response: Response) -> Response:
    request = get_request()
    has_credential = get_header("Authorization") is not None or get_header("X-API-Key") is not None
    of_api = request.path.startswith(f"{rest.PREFIX}/")
    if not (of_api or has_credential) or request.endpoint == "static":
        return response
    response.headers.add("Vary", VARY)
    if "Cache-Control" not in response.headers:
        # A response with an ETag may be stored by its caller, and must be revalidated.
        may_store = request.method in READING and ("ETag" in response.headers or not has_credential)
        response.headers["Cache-Control"] = "private, no-cache" if may_store else "no-store"
    return response
