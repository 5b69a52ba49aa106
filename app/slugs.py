"""What an account's slug looks like, and what its code does (contract section 2)."""

from __future__ import annotations

import re
import unicodedata

CODE = re.compile(r"[A-Za-z]{2}[0-9]{4}")
SLUG = re.compile(r"[a-z][a-z0-9-]*")
SHORTEST_SLUG, LONGEST_SLUG = 3, 32
SYSTEM_SLUG = "system"


def slug_problem(slug: str) -> str | None:
    """Why a text is no slug, or None."""
    if not SHORTEST_SLUG <= len(slug) <= LONGEST_SLUG or not SLUG.fullmatch(slug):
        return (
            f"A slug has {SHORTEST_SLUG} to {LONGEST_SLUG} characters: lower-case letters, digits"
            " and hyphens, a letter first."
        )
    if CODE.fullmatch(slug):
        return "A slug may not look like an account code."
    return None


def slug_from(name: str) -> str:
    """The slug that a name suggests; may still be too short to be one."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    folded = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[:LONGEST_SLUG].strip("-")
