"""Collections, their rules and the manifest."""

from __future__ import annotations

from app.console.collections import api_examples, explain, listing, manifest, rules, schemas

PAGES = (
    api_examples,
    listing,
    explain,
    manifest,
    rules,
    schemas,
)
