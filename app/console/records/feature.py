"""Records of collections."""

from __future__ import annotations

from app.console.records import bulk, file_previews, files, listing, pages, row_pages

PAGES = (
    bulk,
    file_previews,
    files,
    listing,
    pages,
    row_pages,
)
