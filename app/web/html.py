"""HTML pages: security headers, and content negotiation."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response, request

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

FRAMING_POLICY = f"{POLICY}; frame-src 'self'"


def prefers_html() -> bool:
    """Whether the client prefers HTML to JSON."""
    # By quality, not by order: some browsers list other types before text/html.
    kinds = ["application/json", "text/html"]
    return request.accept_mimetypes.best_match(kinds) == "text/html"


def wants_only_json() -> bool:
    """Whether the client names JSON and nothing else, as no browser or mail scanner does."""
    return request.headers.get("Accept", "").strip().lower() == "application/json"


def allow_frames(response: Response) -> Response:
    """Let a page show frames of this service: files, as pages refuse to be framed."""
    response.headers["Content-Security-Policy"] = FRAMING_POLICY
    return response


def framed_by(origins: Sequence[str]) -> str:
    """Return the policy of a page that pages of these origins may show in a frame."""
    ancestors = " ".join(origins) or "'none'"
    return POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {ancestors}")


def add_security_headers(response: Response) -> Response:
    """Add the headers of every page: own scripts only, no frames, no caching.

    Files have a stricter policy, and browsers may keep them if they ask each time.
    """
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers.setdefault("Cache-Control", "no-store")
    return response
