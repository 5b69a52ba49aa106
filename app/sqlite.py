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
from contextlib import suppress
from typing import Any
from weakref import WeakSet, finalize

from app.rules import sqlite as rules_on_sqlite

BUSY_SECONDS = 15
# Seconds between two tries: at first, and at most. What others write takes a few milliseconds.
PAUSES, LONGER = (0.0001, 0.01), 1.1
ROWS = 50
"""How many rows a statement writes at most.

Each connection keeps its last 128 statements, and one of a thousand rows takes a megabyte.
"""


class Driver(sqlite3.Connection):
    """A connection as Atrium uses it."""

    def __init__(self, database: str, **options: Any) -> None:
        _make(database)
        self._patience = options.setdefault("timeout", BUSY_SECONDS)
        super().__init__(database, **options)
        file = self.execute("PRAGMA database_list").fetchone()[2]
        self._queue = _queue_beside(file) if file else None
        if self._queue is not None:
            self._close_queue = finalize(self, os.close, self._queue)
        _all.add(self)
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
        self._queue_up(fcntl.LOCK_EX)
        try:
            self.execute("PRAGMA busy_timeout = 0")
            try:
                self._begin_by(until)
            finally:
                self.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
        finally:
            self._queue_up(fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the database."""
        super().close()
        self.leave_queue()

    def leave_queue(self) -> None:
        """Have no place in the queue any more."""
        if self._queue is not None:
            self._queue = None
            self._close_queue()

    def _queue_up(self, operation: int) -> None:
        # Let go in words, as a process that was forked meanwhile has the file open, too.
        if self._queue is not None:
            with suppress(OSError):
                fcntl.flock(self._queue, operation)

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
            pause = min(pause * LONGER, longest)


def _make(database: str) -> None:
    # For its owner's eyes only, as the files beside it, which get its mode.
    if database and not database.startswith((":", "file:")):
        with suppress(OSError):  # it is there, or cannot be made, as SQLite is about to say
            os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _queue_beside(database: str) -> int | None:
    # Never the database itself: SQLite's own locks are lost when any descriptor of it is closed.
    # Where there can be no such file, nobody waits for anybody.
    with suppress(OSError):
        return os.open(f"{database}-queue", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return None


def _leave_queues() -> None:
    # Their places are those of the parent, who would be waited for as long as the child lives.
    for one in list(_all):
        one.leave_queue()


_all: WeakSet[Driver] = WeakSet()
os.register_at_fork(after_in_child=_leave_queues)
