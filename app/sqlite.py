"""The driver's connection to SQLite: whoever wants to write waits in a queue.

SQLite lets one write at a time, and has the others sleep and try again, ever more rarely: under
load some of them wait for seconds while newcomers pass them. Here they wait in the order they came,
in all processes. Whose turn it is keeps it to the end of the transaction, if that is soon; behind a
longer one, and behind another program, the first in the queue waits as SQLite has it.

What was written is copied from the log into the database by whose turn it is, too. SQLite does it
after any commit, but where others write meanwhile it is never done with it: the log is not begun
anew, and from then on every commit copies.
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
NOTABLE_SECONDS = 0.1
LONG_SECONDS = 0.5
ROWS_IN_LOG, PAGES_IN_LOG, LOG_BYTES = 1000, 10_000, 64 * 2**20
"""After how many changed rows the log is copied; the pages at which SQLite does, come what may; and
what is left of its file where a long read had it grow.
"""
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
        self._turn_since = 0.0
        self._rows_before = 0
        if self._queue is not None:
            self._close_queue = finalize(self, os.close, self._queue)
        _all.add(self)
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        self.execute(f"PRAGMA wal_autocheckpoint = {PAGES_IN_LOG}")
        self.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        rules_on_sqlite.register(self)
        # INSERT OR REPLACE asks the triggers for DELETE, too.
        self.execute("PRAGMA recursive_triggers = ON")

    def begin(self) -> None:
        """Begin a transaction that writes.

        Raises OperationalError where the database is busy for too long, counted from now.
        """
        self._turn_since = asked = time.monotonic()
        try:
            self._queue_up(fcntl.LOCK_EX)
            self._turn_since = time.monotonic()
            waited = self._turn_since - asked
            if waited < NOTABLE_SECONDS:
                self.execute("BEGIN IMMEDIATE")
            else:
                self._begin_within(max(0, self._patience - waited))
        except BaseException:  # whatever broke in: nobody else must wait for it
            self.end_turn()
            raise

    def commit(self) -> None:
        """Commit, and let the next one write."""
        super().commit()
        rows, self._rows_before = self.total_changes - self._rows_before, self.total_changes
        if self._turn_since and _log.is_nearly_copied:
            _log.is_nearly_copied = False
            self._copy_log()
        self.end_turn()
        if _log.is_long(rows):
            self._copy_log()
            _log.is_nearly_copied = True

    def rollback(self) -> None:
        """Take back what is not committed, and let the next one write."""
        try:
            super().rollback()
        finally:
            self.end_turn()

    def cursor(self, *kind: Any) -> Any:
        """What runs the next statement; who has written for long lets others wait their own way."""
        if self._turn_since and time.monotonic() - self._turn_since > LONG_SECONDS:
            self.end_turn()
        return super().cursor(*kind)

    def end_turn(self) -> None:
        """Have the next one in the queue try, also where this transaction goes on."""
        if self._turn_since:
            self._turn_since = 0.0
            self._queue_up(fcntl.LOCK_UN)

    def _copy_log(self) -> None:
        with suppress(sqlite3.Error):  # what is committed stays so, and the next one tries again
            self.execute("PRAGMA wal_checkpoint")

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

    def _begin_within(self, seconds: float) -> None:
        self.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            self.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")


class _Log:
    """How much of this process's writing the log may still hold."""

    def __init__(self) -> None:
        self._rows = 0
        self.is_nearly_copied = False

    def is_long(self, more: int) -> bool:
        """Count rows that were changed: whether it is time to copy them."""
        self._rows += more
        if self._rows < ROWS_IN_LOG:
            return False
        self._rows = 0
        return True


_log = _Log()


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
