"""Preconditions: matches If-Match and If-None-Match against an ETag (contract 5)."""

from __future__ import annotations

from werkzeug.http import parse_etags

from app.errors import PreconditionFailed


def check(header: str | None, etag: str) -> None:
    """Refuse where an If-Match names other views only. Raises PreconditionFailed.

    The weak form of ours fits, too, other than RFC 9110, section 13.1.1, asks for: proxies that
    compress make it of every ETag, and nobody behind one could change anything.
    """
    if header is not None and not parse_etags(header).contains_weak(etag.strip('"')):
        raise PreconditionFailed


def matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match names this view, so that it need not be sent again."""
    return header is not None and parse_etags(header).contains_weak(etag.strip('"'))
