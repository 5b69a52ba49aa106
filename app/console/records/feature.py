"""Records of collections."""

from __future__ import annotations

from app.console.records import (
    bulk,
    downloads,
    files,
    history,
    listing,
    options,
    pages,
    row_pages,
    uploads,
    view_pages,
)

PAGES = (
    bulk,
    downloads,
    files,
    history,
    listing,
    options,
    pages,
    row_pages,
    uploads,
    view_pages,
)
