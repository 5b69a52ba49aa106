"""HTML pages: content negotiation, security headers, and gzip."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from io import BytesIO
from secrets import randbelow, token_hex

from flask import Response, request

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

FRAMING_POLICY = f"{POLICY}; frame-src 'self'"

MIN_BYTES = 1400
"""Smaller responses fit into one packet anyway."""
PAGE_LEVEL = 5
MAX_PADDING = 100


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


def accepts_gzip() -> bool:
    """Whether the client takes gzip."""
    return request.accept_encodings["gzip"] > 0


def compress_page(response: Response) -> Response:
    """Compress a page if the client accepts it.

    Random padding hides the exact size: who could observe it while putting own words into the page
    would guess secrets in it, letter by letter (BREACH).
    """
    response.vary.add("Accept-Encoding")
    is_page = response.mimetype == "text/html" and not response.is_streamed
    if not is_page or "Content-Encoding" in response.headers or not accepts_gzip():
        return response
    page = response.get_data()
    if len(page) < MIN_BYTES:
        return response
    packed = BytesIO()
    name = token_hex(MAX_PADDING)[: randbelow(MAX_PADDING) + 1]
    with gzip.GzipFile(name, "wb", PAGE_LEVEL, packed, mtime=0) as file:
        file.write(page)
    response.set_data(packed.getvalue())
    response.headers["Content-Encoding"] = "gzip"
    return response
