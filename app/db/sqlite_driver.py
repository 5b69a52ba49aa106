"""The driver's connection to SQLite: whoever wants to write waits in a queue.

SQLite lets one write at a time, and has the others sleep and try again, ever more rarely: under
load some of them wait for seconds while newcomers pass them. Here they wait in the order they came,
in all processes. Whose turn it is keeps it to the end of the transaction, and the first in the
queue is told as it is given back. Behind a transaction that takes long, and behind another program,
that one waits as SQLite has it: a writer that hangs keeps nobody waiting for longer than all can.

What was written is copied from the log into the database by whose turn it is, too. SQLite does it
after any commit, but where others write meanwhile it is never done with it: the log is not begun
anew, and from then on every commit copies.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import sqlite3
import time
from contextlib import suppress
from typing import Any
from weakref import WeakSet, WeakValueDictionary, finalize

from app.rules import sqlite as rules_on_sqlite

BUSY_SECONDS = 15
# How long the first in the queue waits to be told; and the wait from which on less is left.
LONG_SECONDS, NOTABLE_SECONDS = 0.5, 0.1
# Seconds between two tries where the system tells when to, or else does not.
TOLD_PAUSE, UNTOLD_PAUSE = 0.01, 0.0003
IN_MODIFY = 2
STEPS_BETWEEN_CHECKS = 1000
"""Of SQLite's own steps within a statement: how often it looks whether the time is up."""
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

    closes_in_turn = False
    """Whether others may be about to close theirs: the last takes the log along, if none is both.
    """

    def __init__(self, database: str, **options: Any) -> None:
        _make(database)
        self._patience = options.setdefault("timeout", BUSY_SECONDS)
        file = self._opened(database, options)
        # Never the file itself: SQLite's own locks are lost when any descriptor of it is closed.
        self._queue = _Lock(file and f"{file}-queue")
        self._turn = _Turn(file and f"{file}-turn")
        self._rows_before = 0
        self._deadline: float | None = None
        _all.add(self)
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        self.execute(f"PRAGMA wal_autocheckpoint = {PAGES_IN_LOG}")
        self.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        rules_on_sqlite.register(self)
        # INSERT OR REPLACE asks the triggers for DELETE, too.
        self.execute("PRAGMA recursive_triggers = ON")

    def _opened(self, database: str, options: dict[str, Any]) -> str:
        """Open the database; returns its path. Raises OperationalError, which names it."""
        try:
            super().__init__(database, **options)
            return str(self.execute("PRAGMA database_list").fetchone()[2])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                error.args = (f"{error}: {database}",)
            raise

    def begin(self) -> None:
        """Begin a transaction that writes.

        Raises OperationalError where the database is busy for too long, counted from now.
        """
        asked = time.monotonic()
        until = asked + self._patience
        try:
            self._queue.wait()
            self._turn.try_for(min(LONG_SECONDS, until - time.monotonic()))
            if time.monotonic() - asked < NOTABLE_SECONDS:
                self.execute("BEGIN IMMEDIATE")
            else:
                self._begin_within(max(0, until - time.monotonic()))
        finally:  # whatever broke in: nobody else must wait for it
            self._queue.give_back()
            if not self.in_transaction:
                self._turn.give_back()

    def limit(self, seconds: float) -> None:
        """Have statements of the transaction raise OperationalError (INTERRUPT) from so long on."""
        self._deadline = time.monotonic() + seconds
        self.set_progress_handler(self._is_late, STEPS_BETWEEN_CHECKS)

    def cursor(self, *args: Any, **options: Any) -> Any:
        """What a statement is run by. Raises OperationalError where the time is up."""
        self.check_time()
        return super().cursor(*args, **options)

    def check_time(self) -> None:
        """Refuse to go on with a transaction that has lasted for too long."""
        if self._deadline is not None and self._is_late():
            error = sqlite3.OperationalError("interrupted: the transaction takes too long")
            error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
            raise error

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _end_limit(self) -> None:
        if self._deadline is not None:
            self._deadline = None
            self.set_progress_handler(None, 0)

    def commit(self) -> None:
        """Commit, and let the next one write."""
        self._end_limit()
        super().commit()
        rows, self._rows_before = self.total_changes - self._rows_before, self.total_changes
        if self._turn.is_mine and _log.is_nearly_copied and self._copied_log():
            _log.is_nearly_copied = False
        self._turn.give_back()
        if _log.is_long(rows) and self._copied_log():
            _log.is_nearly_copied = True

    def rollback(self) -> None:
        """Take back what is not committed, and let the next one write."""
        self._end_limit()
        try:
            super().rollback()
        finally:
            self._queue.give_back()
            self._turn.give_back()

    def _copied_log(self) -> bool:
        """Copy the log; False where somebody else is about it."""
        with suppress(sqlite3.Error):  # what is committed stays so, and the next one tries again
            is_busy = self.execute("PRAGMA wal_checkpoint").fetchone()[0]
            return not is_busy
        return False

    def close(self) -> None:
        """Let go of the database."""
        if self.closes_in_turn:
            self._turn.try_for(LONG_SECONDS)
            Driver.closes_in_turn = self._turn.is_mine  # who has it for so long only writes
        super().close()
        self.leave_queue()

    def leave_queue(self) -> None:
        """Have no place in the queue any more."""
        self._queue.close()
        self._turn.close()

    def _begin_within(self, seconds: float) -> None:
        self.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            self.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")


def is_locked(file: str, seconds: float) -> bool:
    """Whether one transaction, or another program, keeps all others waiting for so long."""
    turn, until = _Turn(f"{file}-turn"), time.monotonic() + seconds
    given_back = turn.given_back_at()
    try:
        while not turn.is_free() and turn.given_back_at() == given_back:
            if time.monotonic() > until:
                return True
            time.sleep(TOLD_PAUSE)
        return False
    finally:
        turn.close()


class _Lock:
    """A file that one connection at a time has to itself; where there can be none, each has it."""

    def __init__(self, path: str) -> None:
        self.is_mine = False
        """Whether it is this connection's, or is about to be, or was so just now."""
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self._close = finalize(self, os.close, self._file)

    def wait(self) -> None:
        """Have it after all who came before."""
        self.is_mine = True  # before it is: whatever breaks in, it is given back
        self._has(fcntl.LOCK_EX)

    def give_back(self) -> None:
        """Let the next one have it."""
        if self.is_mine:
            # In words, as a process that was forked meanwhile has the file open, too.
            self._has(fcntl.LOCK_UN)
            self.is_mine = False  # only now: what breaks in must not have it kept for good

    def close(self) -> None:
        """Let go of it, and want it no more."""
        if self._file is not None:
            self._file = None
            self._close()

    def _has(self, operation: int) -> bool:
        try:
            if self._file is not None:
                fcntl.flock(self._file, operation)
        except OSError as error:  # else of a file that knows no locks
            return not isinstance(error, BlockingIOError)
        return True


class _Turn(_Lock):
    """The lock that only the first in the queue waits for, and not without end."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path
        self._returns: _Returns | None = None

    def try_for(self, seconds: float) -> None:
        """Have it as soon as it is free, or give up after so long."""
        self.is_mine = True
        until = time.monotonic() + seconds
        while not self._has(fcntl.LOCK_EX | fcntl.LOCK_NB):
            left = until - time.monotonic()
            if left < 0:
                self.is_mine = False
                return
            self._returns = self._returns or _returns_of(self._path)
            self._returns.wait(left)

    def is_free(self) -> bool:
        """Whether nobody has it now."""
        self.is_mine = self._has(fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = self.is_mine
        self.give_back()
        return free

    def given_back_at(self) -> int:
        """A moment that changes with each time that it is given back."""
        return 0 if self._file is None else os.fstat(self._file).st_mtime_ns

    def give_back(self) -> None:
        """Let the next one have it, and tell whoever watches its file."""
        was_mine = self.is_mine
        super().give_back()
        if was_mine and self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, b"\0", 0)


class _Returns:
    """Tells this process when a turn is given back: its file is written to. Only Linux has it."""

    def __init__(self, path: str) -> None:
        self._told: int | None = None
        with suppress(AttributeError):
            libc = ctypes.CDLL(None)
            told = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if told < 0:
                return
            finalize(self, os.close, told)
            if libc.inotify_add_watch(told, os.fsencode(path), IN_MODIFY) >= 0:
                self._told = told

    def wait(self, seconds: float) -> None:
        """Wait until it is, or may be: so long at most."""
        if self._told is None:
            time.sleep(min(UNTOLD_PAUSE, seconds))
            return
        told = select.poll()
        told.register(self._told, select.POLLIN)
        told.poll(min(TOLD_PAUSE, seconds) * 1000)
        with suppress(BlockingIOError):  # what comes from now on is told once more
            os.read(self._told, 4096)


_returns: WeakValueDictionary[str, _Returns] = WeakValueDictionary()


def _returns_of(path: str) -> _Returns:
    found = _returns.get(path)
    if found is None:
        found = _returns[path] = _Returns(path)
    return found


class _Log:
    """How much of this process's writing the log may still hold."""

    def __init__(self) -> None:
        self._rows = 0
        # What the processes before left in it goes with the first change of this one.
        self.is_nearly_copied = True

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


def _leave_queues() -> None:
    # Their places are those of the parent, who would be waited for as long as the child lives.
    for one in list(_all):
        one.leave_queue()
    _returns.clear()


_all: WeakSet[Driver] = WeakSet()
os.register_at_fork(after_in_child=_leave_queues)
