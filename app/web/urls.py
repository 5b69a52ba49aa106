"""URLs that the service sends people to."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit, urlunsplit


def with_query(url: str, params: Mapping[str, str]) -> str:
    """The URL with more query parameters."""
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode(params))))
    return urlunsplit(parts._replace(query=query))
