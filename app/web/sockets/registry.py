"""Counts the connections of this process that are served in its loop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Generic, Protocol, TypeVar

from app.errors import TooManyRequests, Unavailable

RETRY_SECONDS = 15


class Counted(Protocol):
    """A connection of an account."""

    account_id: str


Member = TypeVar("Member", bound=Counted)


class Registry(Generic[Member]):
    """The open connections of one kind. Safe in all threads."""

    def __init__(self, kind: str) -> None:
        self._kind, self._lock = kind, threading.Lock()
        self._open: set[Member] = set()
        self._by_account = Counter[str]()

    def check_room(self, account_id: str, most: int, most_of_account: int) -> None:
        """Raise Unavailable or TooManyOpen if there are too many already."""
        if len(self._open) >= most:
            raise Unavailable(f"This process has too many {self._kind}. Try again later.")
        if self._by_account[account_id] >= most_of_account:
            raise TooManyOpen(self._kind)

    def add(self, connection: Member) -> None:
        with self._lock:
            self._open.add(connection)
            self._by_account[connection.account_id] += 1

    def remove(self, connection: Member) -> None:
        """Count a connection no more."""
        with self._lock:
            if connection not in self._open:
                return
            self._open.remove(connection)
            self._by_account[connection.account_id] -= 1
            if not self._by_account[connection.account_id]:
                del self._by_account[connection.account_id]

    def all(self) -> list[Member]:
        with self._lock:
            return list(self._open)

    def wait_closed(self, seconds: float) -> None:
        """Wait until all are closed, but no longer than this."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while self.all() and time.monotonic() < deadline:
            pause.wait(0.01)


class TooManyOpen(TooManyRequests):
    """Too many connections of one account."""

    error = "limit_reached"

    def __init__(self, kind: str) -> None:
        message = f"Your account has too many open {kind}. Close some, or try again later."
        super().__init__(RETRY_SECONDS, message)
