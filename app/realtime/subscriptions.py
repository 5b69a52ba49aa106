"""Subscriptions of streams."""

from __future__ import annotations

from dataclasses import dataclass

OPERATIONS = frozenset({"create", "update", "delete"})


def key_of(collection: str | None) -> str:
    """The key of a stream's subscription to a collection, whose case does not matter."""
    return (collection or "").lower()


@dataclass(eq=False)
class Subscription:
    """One collection (None: all that the caller may view), and which of its changes."""

    collection: str | None
    operations: frozenset[str] = OPERATIONS
    filter: str = ""
    since: int | None = None
    """The last change that the client has; None for changes from now on."""
    position: int = 0
    """Changes up to this one are done; set by the hub."""
    is_reset: bool = False
    """Whether changes after `since` are missing."""
