"""What all pages have in common: their headers, and who gets one instead of JSON."""

from __future__ import annotations

from flask import Response, request

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def prefers_html() -> bool:
    """Whether a browser asks, where a client of the API gets JSON."""
    # Not what is named first: some browsers name what they take besides pages most exactly.
    kinds = ["application/json", "text/html"]
    return request.accept_mimetypes.best_match(kinds) == "text/html"


def add_security_headers(response: Response) -> Response:
    """Headers of every page: no scripts but ours, no frames, nothing kept by caches."""
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"
    return response
