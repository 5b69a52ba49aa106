"""The driver's connection to SQLite: whoever wants to write waits in a queue.

SQLite lets one write at a time, and has the others sleep and try again, ever more rarely: under
load some of them wait for seconds while newcomers pass them. Here they wait in the order they came,
in all processes; only the first in the queue tries, and often.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from app.rules import sqlite as rules_on_sqlite

BUSY_SECONDS = 15
PAUSES = 0.0003, 0.01  # seconds: the first between two tries, and the longest


class Driver(sqlite3.Connection):
    """A connection as Atrium uses it."""

    def __init__(self, database: str, **options: Any) -> None:
        _make(database)
        self._patience = options.setdefault("timeout", BUSY_SECONDS)
        super().__init__(database, **options)
        file = self.execute("PRAGMA database_list").fetchone()[2]
        self._queue = f"{file}-queue" if file else ""
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        rules_on_sqlite.register(self)
        # INSERT OR REPLACE asks the triggers for DELETE, too.
        self.execute("PRAGMA recursive_triggers = ON")

    def begin(self) -> None:
        """Begin a transaction that writes.

        Raises OperationalError where the database is busy for too long, counted from now.
        """
        until = time.monotonic() + self._patience
        with _first_in(self._queue):
            self.execute("PRAGMA busy_timeout = 0")
            try:
                self._begin_by(until)
            finally:
                self.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")

    def _begin_by(self, until: float) -> None:
        pause, longest = PAUSES
        while True:
            try:
                self.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > until:
                    raise
            else:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, longest)


def _make(database: str) -> None:
    # For its owner's eyes only, as the files beside it, which get its mode.
    if database and not database.startswith((":", "file:")):
        with suppress(OSError):  # it is there, or cannot be made, as SQLite is about to say
            os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


@contextmanager
def _first_in(queue: str) -> Iterator[None]:
    """Inside, nobody else is first. Where there can be no such file, nobody waits for anybody."""
    # Never the database itself: SQLite's own locks are lost when any descriptor of it is closed.
    try:
        place = os.open(queue, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # said, as a process that was forked meanwhile has it open, too
            fcntl.flock(place, fcntl.LOCK_UN)
        os.close(place)
