"""Collections, their rules and the manifest."""

from __future__ import annotations

from app.console.collections import (
    api_examples,
    candidates,
    explain,
    listing,
    manifest,
    rules,
    schemas,
)

PAGES = (
    api_examples,
    candidates,
    explain,
    listing,
    manifest,
    rules,
    schemas,
)
