"""Limits how many threads of a worker use the database at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app import db


class Slots:
    """Slots for database work, and as many places for instances that wait for one.

    No more are claimed, or their leases would expire while they wait. Instances that wait for a
    receiver do not count.
    """

    def __init__(self, number: int) -> None:
        self._number, self._inside = number, 0
        self._free, self._lock = threading.Semaphore(number), threading.Lock()

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Hold a slot, and return the database connection afterwards."""
        with self._free:
            try:
                yield
            finally:
                db.db.session.remove()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Leave the slot count while waiting for a receiver."""
        self.count(-1)
        try:
            yield
        finally:
            self.count(1)

    @property
    def room(self) -> int:
        """The number of instances to claim next; 0 until a claim is worth it."""
        room = 2 * self._number - self._inside
        return room if room >= self._number else 0

    def count(self, change: int) -> None:
        """Change the number of instances."""
        with self._lock:
            self._inside += change
