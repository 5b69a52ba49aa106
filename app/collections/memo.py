"""What is made once for many requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

MOST_KEPT = 32
Made = TypeVar("Made")


class Kept:
    """Things made once, under their keys; beyond a number those unused for longest are dropped."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._found: dict[Hashable, Any] = {}

    def get(self, make: Callable[..., Made], *key: Hashable) -> Made:
        """What `make` gives for a key. It is not remembered where that raises."""
        found = self._found.pop((make, *key), None)
        if found is None:
            found = make(*key)
            while len(self._found) >= self._most:
                self._found.pop(next(iter(self._found.copy()), None), None)
        self._found[make, *key] = found
        made: Made = found
        return made
