"""The pool of connections: whoever runs one statement borrows one, at next to no cost."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from threading import Condition
from typing import Any

from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import QueuePool
from sqlalchemy.util.queue import Empty, Full, QueueCommon


class Idle(QueueCommon[Any]):
    """Connections that nobody uses; the last that came, as the warmest, goes first."""

    def __init__(self, maxsize: int = 0, use_lifo: bool = True) -> None:
        self.maxsize, self.use_lifo = maxsize, use_lifo
        self._idle: deque[Any] = deque()  # both its ends are safe without a lock
        self._came = Condition()
        self._waiting = 0

    def qsize(self) -> int:
        """How many there are."""
        return len(self._idle)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add one. Raises Full where there are enough."""
        if len(self._idle) >= self.maxsize:
            raise Full
        self._idle.append(item)
        if self._waiting:  # whoever is about to wait says so before looking
            with self._came:
                self._came.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take one. Raises Empty where there is none, or none comes in so many seconds."""
        try:
            return self._idle.pop()
        except IndexError:
            if not block or timeout is None:
                raise Empty from None
        return self._awaited(time.monotonic() + timeout)

    def _awaited(self, until: float) -> Any:
        with self._came:
            self._waiting += 1
            try:
                while True:  # once more at the end: what came then was told to nobody else
                    with suppress(IndexError):
                        return self._idle.pop()
                    if (left := until - time.monotonic()) <= 0:
                        break
                    self._came.wait(left)
            finally:
                self._waiting -= 1
        raise Empty


class Pool(QueuePool):
    """A pool that also lends its connections for one statement in no transaction."""

    _queue_class = Idle

    def lend(self) -> Any:
        """The pool's entry for a connection that works; to be given back in any case."""
        entry: Any = self._do_get()
        try:
            self._see_to(entry)
        except BaseException as error:  # its place comes back, whatever went wrong
            entry._checkin_failed(error, _fairy_was_created=False)
            raise
        return entry

    def _see_to(self, entry: Any) -> None:
        found = entry.get_connection()
        if not self.dispatch.checkout:
            return
        try:
            self.dispatch.checkout(found, entry, None)
        except DisconnectionError as error:
            entry.invalidate(error)
            self.dispatch.checkout(entry.get_connection(), entry, None)

    def take_back(self, entry: Any) -> None:
        """Have back what was lent."""
        self._do_return_conn(entry)
