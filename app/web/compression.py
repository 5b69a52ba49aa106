"""Gzip of what is sent: static files once, pages each time."""

from __future__ import annotations

import gzip
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from secrets import randbelow, token_hex

from flask import Response, request

TYPES = frozenset({".css", ".js", ".json", ".svg"})
MIN_BYTES = 1400
"""Smaller responses fit into one packet anyway."""
PAGE_LEVEL, FILE_LEVEL = 5, 9
MAX_PADDING = 100


def is_accepted() -> bool:
    """Whether the client takes gzip."""
    return request.accept_encodings["gzip"] > 0


@lru_cache(256)
def compressed_file(path: Path, modified_ns: int) -> bytes | None:
    """The gzip of a static file, None if it is of a type that does not shrink."""
    if path.suffix not in TYPES:
        return None
    return gzip.compress(path.read_bytes(), FILE_LEVEL, mtime=0)


def compress_page(response: Response) -> Response:
    """Compress a page if the client accepts it.

    Random padding hides the exact size: who could observe it while putting own words into the page
    would guess secrets in it, letter by letter (BREACH).
    """
    response.vary.add("Accept-Encoding")
    is_page = response.mimetype == "text/html" and not response.is_streamed
    if not is_page or "Content-Encoding" in response.headers or not is_accepted():
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
