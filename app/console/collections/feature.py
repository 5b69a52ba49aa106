"""Collections, their rules and the manifest."""

from __future__ import annotations

from app.console.collections import (
    api_examples,
    explain,
    fragments,
    listing,
    manifest,
    rules,
    schemas,
)

PAGES = (
    fragments,
    api_examples,
    listing,
    explain,
    manifest,
    rules,
    schemas,
)
