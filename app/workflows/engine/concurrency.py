"""How many threads of a worker use the database at once, and how many wait to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app import db


class Slots:
    """A few slots for work with the database, and room for as many instances that wait for one.

    No more are claimed, or their leases would run out meanwhile. Those that wait for a receiver
    do not count.
    """

    def __init__(self, number: int) -> None:
        self._number, self._inside = number, 0
        self._free, self._lock = threading.Semaphore(number), threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A slot, and afterwards the connection given back."""
        with self._free:
            try:
                yield
            finally:
                db.db.session.remove()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Outside, while a receiver is waited for."""
        self.count(-1)
        try:
            yield
        finally:
            self.count(1)

    @property
    def room(self) -> int:
        """How many more instances may come; none before it is worth a claim."""
        room = 2 * self._number - self._inside
        return room if room >= self._number else 0

    def count(self, change: int) -> None:
        """Note that an instance has come or gone."""
        with self._lock:
            self._inside += change
