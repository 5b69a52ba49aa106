"""Preconditions of changes: If-Match and If-None-Match (RFC 9110, sections 13.1.1 and 13.1.2)."""

from __future__ import annotations

from typing import NamedTuple

from werkzeug.http import parse_etags

from app.errors import PreconditionFailed
from app.web import preconditions


class Preconditions(NamedTuple):
    """The headers of a request to change a resource."""

    if_match: str | None = None
    if_none_match: str | None = None

    def check(self, etag: str) -> None:
        """Refuse to change another version than the wanted one. Raises PreconditionFailed."""
        preconditions.check(self.if_match, etag)
        if self.if_none_match is not None:
            unwanted = parse_etags(self.if_none_match)
            if unwanted.star_tag or unwanted.contains_weak(etag.strip('"')):
                raise PreconditionFailed(NOT_WANTED)


NOT_WANTED = "This exists: its ETag matches If-None-Match."
