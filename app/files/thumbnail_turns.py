"""Who makes a thumbnail next: one at a time in a process, for its memory, accounts in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.errors import Unavailable

MOST_ACCOUNTS = 1000


@dataclass(eq=False)
class _Waiter:
    account_id: str
    is_refused: bool = False


class Turns:
    """Of those who wait, whose account had its last turn longest ago is next.

    If too many wait, the newest of the account with the most is refused, and of several such
    accounts the one whose last turn is the latest: one account's requests refuse only its own.
    """

    def __init__(self, most_waiting: int, seconds: float) -> None:
        self._most_waiting, self._seconds = most_waiting, seconds
        self._changed = threading.Condition()
        self._waiting: list[_Waiter] = []
        self._taken_by: str | None = None
        self._last: dict[str, float] = {}  # when the last turn of an account began

    @contextmanager
    def taken(self, account_id: str) -> Iterator[None]:
        """Wait for a turn, and have it. Raises Unavailable."""
        waiter = _Waiter(account_id)
        with self._changed:
            self._waiting.append(waiter)
            if len(self._waiting) > self._most_waiting + (self._taken_by is None):
                refused = max(reversed(self._waiting), key=self._weight)
                refused.is_refused = True
                self._waiting.remove(refused)
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: waiter.is_refused or self._is_next(waiter), self._seconds
            )
            is_next = not waiter.is_refused and self._is_next(waiter)
            if not waiter.is_refused:
                self._waiting.remove(waiter)
            if not is_next:
                raise Unavailable
            self._taken_by = account_id
            self._last.pop(account_id, None)
            self._last[account_id] = time.monotonic()
            if len(self._last) > MOST_ACCOUNTS:
                del self._last[next(iter(self._last))]
        try:
            yield
        finally:
            with self._changed:
                self._taken_by = None
                self._changed.notify_all()

    def _is_next(self, waiter: _Waiter) -> bool:
        if self._taken_by is not None:
            return False
        return waiter is min(self._waiting, key=lambda one: self._last.get(one.account_id, 0))

    def _weight(self, waiter: _Waiter) -> tuple[int, float]:
        of = waiter.account_id
        count = sum(one.account_id == of for one in self._waiting) + (self._taken_by == of)
        return count, self._last.get(of, 0)
