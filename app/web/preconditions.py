"""Preconditions: matches If-Match and If-None-Match against an ETag (RFC 9110, 13.1)."""

from __future__ import annotations

from dataclasses import dataclass

from werkzeug.http import parse_etags

from app.errors import PreconditionFailed

UNWANTED = "The current version is one that If-None-Match names."


@dataclass(frozen=True)
class Preconditions:
    """The headers If-Match and If-None-Match of a change (RFC 9110, section 13.1)."""

    if_match: str | None = None
    if_none_match: str | None = None

    def __bool__(self) -> bool:
        return self != ANY_VERSION

    def check(self, etag: str) -> None:
        """Raise PreconditionFailed unless both headers fit the current version."""
        check(self.if_match, etag)
        if matches(self.if_none_match, etag):
            raise PreconditionFailed(UNWANTED)


ANY_VERSION = Preconditions()


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
