"""The SQLite connection: writers wait in a fair queue.

SQLite takes one writer at a time and lets the others sleep and retry, at growing intervals: under
load some wait for seconds while newcomers pass them. Here writers queue by `flock`, across all
processes, in order of arrival. Two locks make the queue: only the first in it holds `-queue`, and
waits for `-turn`, which the writer holds until its transaction ends. If a transaction takes long,
or another program writes, the first falls back to SQLite's own waiting, so that one stuck writer
blocks the others no longer than SQLite would.

The transaction of a request may write until its deadline (`app/context/deadline.py`), and waits for
its turn half as long again: one transaction that runs until its deadline makes nobody give up.

Requests of one account take turns before they queue: whoever writes waits for one transaction of
each other account at most, however many threads one of them has filled.

The writer also checkpoints the WAL. SQLite does so after any commit, but while others write it
never finishes: the WAL does not restart, and from then on every commit checkpoints.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize

import sqlalchemy as sa

from app.context import deadline, tenancy
from app.context.deadline import Limit
from app.db.watch import Watch
from app.rules import sqlite as rules_on_sqlite

BUSY_SECONDS = 15
LONG_SECONDS = 0.5
"""Seconds that the first in the queue waits for its turn."""
SHORT_SECONDS = 0.1
"""A wait up to this long leaves SQLite's busy timeout as it is."""
WAIT_FACTOR = 1.5
"""A request waits for its turn this many times as long as it may write."""
POLL_SECONDS, LONGEST_POLL_SECONDS, CHECK_SECONDS = 0.00005, 0.0003, 0.01
POLL_GROWTH = 1.2
"""Most turns come within a millisecond, which a longer first sleep would miss by a third."""
OPEN_FILE_LOCK: int | None = (
    getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
)
"""Locks of an open file, which threads do not share: see fcntl(2) of Linux."""
WAL_ROWS = 1000
"""After how many changed rows a process checkpoints the WAL."""
WAL_PAGES = 10_000
"""The pages at which SQLite checkpoints in any case."""
WAL_BYTES = 64 * 2**20
"""The size to which the WAL file shrinks after a long read made it grow."""
ROWS = 50
"""The most rows of one statement.

Each connection caches its last 128 statements, and one of a thousand rows takes a megabyte.
"""


class Driver(sqlite3.Connection):
    """A connection whose transactions take their turn to write."""

    closes_in_turn = False
    """Whether several connections may be closing: only the last to close removes the WAL, and if
    two close at once neither does.
    """

    def __init__(self, database: str, **options: Any) -> None:
        # Only its owner may read it; SQLite gives the files beside it the same mode.
        if database and not database.startswith((":", "file:")):
            with suppress(OSError):  # it exists, or SQLite is about to report why it cannot
                os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self.database = database
        self._timeout = options.setdefault("timeout", BUSY_SECONDS)
        file = self._open(database, options)
        # Never lock the file itself: closing any descriptor of it drops SQLite's own locks.
        self._queue = _Lock(file and f"{file}-queue")
        self._turn = _Turn(file and f"{file}-turn")
        self._account_turn = _AccountTurn(file and f"{file}-accounts")
        self._rows_before = 0
        self.watch = Watch(self.interrupt)
        self._deadline: float | None = None
        self._checks_foreign_keys = True
        _drivers.add(self)
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        self.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        self.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        rules_on_sqlite.register(self)
        # Makes INSERT OR REPLACE fire the DELETE triggers, too.
        self.execute("PRAGMA recursive_triggers = ON")

    def _open(self, database: str, options: dict[str, Any]) -> str:
        """Open the database; returns its path. Raises OperationalError that names it."""
        try:
            super().__init__(database, **options)
            return str(self.execute("PRAGMA database_list").fetchone()[2])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                error.args = (f"{error}: {database}",)
            raise

    def begin(self, limit: Limit | None = None, *, checks_foreign_keys: bool = True) -> None:
        """Begin a write transaction. Raises OperationalError if the database stays busy.

        Past the limit its statements raise OperationalError (INTERRUPT).
        """
        if not checks_foreign_keys:  # SQLite takes this only outside a transaction
            self._checks_foreign_keys = False
            self.execute("PRAGMA foreign_keys = OFF")
        if self.watch.until is not None:  # the deadline of an earlier read
            self.watch.stop()
        self._begin(limit.seconds * WAIT_FACTOR if limit else self._timeout, is_request=bool(limit))
        if limit:
            self._deadline = time.monotonic() + limit.seconds
            self.watch.start(*limit)

    def _begin(self, seconds: float, *, is_request: bool) -> None:
        until = time.monotonic() + seconds
        try:
            if is_request:
                scope = tenancy.source.get()()  # `tenancy.current()`, a module less on the way
                if scope not in tenancy.NO_SINGLE_ACCOUNT:
                    self._account_turn.acquire_for(scope, seconds)
            start = time.monotonic()
            self._queue.acquire()
            self._turn.acquire_within(min(LONG_SECONDS, until - time.monotonic()))
            if time.monotonic() - start < SHORT_SECONDS:
                self.execute("BEGIN IMMEDIATE")
            else:
                self._begin_within(max(0, until - time.monotonic()))
        finally:  # even if interrupted, others must not wait for this connection
            self._queue.release()
            if not self.in_transaction:
                self._turn.release()
                self._account_turn.release()

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Return a cursor for a statement. Raises OperationalError if the time is up."""
        self.begin_statement()
        return super().cursor(*args, **options)

    def begin_statement(self) -> None:
        """Give a read its deadline; a transaction that writes has one for all of its statements."""
        if self._deadline is not None:
            self.check_time()
        elif (limit := deadline.limit.get()) is not None:
            self.watch.start(*limit)
        else:
            self.watch.stop()

    def check_time(self) -> None:
        """Raise OperationalError if the transaction has passed its time limit."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            error = sqlite3.OperationalError("interrupted: the transaction takes too long")
            error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
            raise error

    def _end_limit(self) -> None:
        self._deadline = None
        if self.watch.until is not None:
            self.watch.stop()

    def commit(self) -> None:
        """Commit, and let the next in the queue write."""
        self._end_limit()
        super().commit()
        rows, self._rows_before = self.total_changes - self._rows_before, self.total_changes
        if self._turn.is_held and _wal.is_almost_copied and self._checkpoint():
            _wal.is_almost_copied = False
        self._turn.release()
        self._account_turn.release()
        if _wal.is_long(rows) and self._checkpoint():
            _wal.is_almost_copied = True

    def rollback(self) -> None:
        """Roll back, and let the next in the queue write; the pool does so after a commit, too."""
        self._end_limit()
        try:
            super().rollback()
            if not self._checks_foreign_keys:
                self.execute("PRAGMA foreign_keys = ON")
                self._checks_foreign_keys = True
        finally:
            self._queue.release()
            self._turn.release()
            self._account_turn.release()

    def _checkpoint(self) -> bool:
        """Checkpoint the WAL; False if another connection is doing so."""
        with suppress(sqlite3.Error):  # the commit stands, and the next one tries again
            is_busy = self.execute("PRAGMA wal_checkpoint").fetchone()[0]
            return not is_busy
        return False

    def close(self) -> None:
        """Close the connection, and leave the queue."""
        self.watch.stop()  # SQLite must not be interrupted while it closes
        if self.closes_in_turn:
            self._turn.acquire_within(LONG_SECONDS)
            Driver.closes_in_turn = self._turn.is_held  # if not, some writer holds it for long
        super().close()
        self.leave_queue()

    def leave_queue(self) -> None:
        """Close the lock files."""
        self._queue.close()
        self._turn.close()
        self._account_turn.close()

    def _begin_within(self, seconds: float) -> None:
        self.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            self.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")


@contextmanager
def fetching(connection: sa.Connection, limit: Limit | None) -> Iterator[None]:
    """Give this part of a long read a deadline of its own; PostgreSQL does so by itself."""
    driver = connection.connection.driver_connection
    if limit is None or not isinstance(driver, Driver):
        yield
        return
    driver.watch.start(*limit)
    try:
        yield
    finally:
        driver.watch.stop()


def is_locked(file: str, seconds: float) -> bool:
    """Whether one transaction, or another program, blocks all writers for this long."""
    turn, deadline = _Turn(f"{file}-turn"), time.monotonic() + seconds
    released_at = turn.released_at()
    try:
        while not turn.is_free() and turn.released_at() == released_at:
            if time.monotonic() > deadline:
                return True
            time.sleep(CHECK_SECONDS)
        return False
    finally:
        turn.close()


@contextmanager
def alone(file: str | None, work: str) -> Iterator[bool]:
    """Whether no other process does this work for a database file; never waits."""
    lock = _Lock(f"{file}-{work}" if file else "")
    lock.is_held = lock._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield lock.is_held
    finally:
        lock.release()
        lock.close()


def mark(file: str | None, news: str) -> None:
    """Change what `marked` returns for a database file, in all processes."""
    with suppress(OSError):
        if file:
            descriptor = os.open(f"{file}-{news}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as marks:
                marks.write(os.urandom(8))


def marked(file: str, news: str) -> bytes:
    """Return what the last `mark` left."""
    with suppress(OSError):
        return Path(f"{file}-{news}").read_bytes()
    return b""


class _Lock:
    """An exclusive file lock; if the file cannot be opened, every connection holds it."""

    def __init__(self, path: str) -> None:
        self.is_held = False
        """Whether this connection holds the lock, or is just acquiring or releasing it."""
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self._close = finalize(self, os.close, self._file)

    def acquire(self) -> None:
        """Wait for the lock, behind all who came before."""
        self.is_held = True  # set first, so that an interrupt still leads to a release
        self._flock(fcntl.LOCK_EX)

    def release(self) -> None:
        if self.is_held:
            # Closing is not enough: a forked process may have the file open, too.
            self._flock(fcntl.LOCK_UN)
            self.is_held = False  # set last, so that an interrupt cannot leave it locked

    def close(self) -> None:
        if self._file is not None:
            self._file = None
            self._close()

    def _flock(self, operation: int) -> bool:
        try:
            if self._file is not None:
                fcntl.flock(self._file, operation)
        except OSError as error:  # other errors: a file system without locks
            return not isinstance(error, BlockingIOError)
        return True


class _Turn(_Lock):
    """The lock of the writer. Only the first in the queue waits for it, so it may poll."""

    def acquire_within(self, seconds: float) -> None:
        """Acquire the lock, or give up after this long."""
        self.is_held = True
        deadline, pause = time.monotonic() + seconds, POLL_SECONDS
        while not self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            left = deadline - time.monotonic()
            if left < 0:
                self.is_held = False
                return
            time.sleep(min(pause, left))
            pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)

    def is_free(self) -> bool:
        """Whether nobody holds the lock."""
        self.is_held = self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = self.is_held
        self.release()
        return free

    def released_at(self) -> int:
        """Return a timestamp that changes with every release."""
        return 0 if self._file is None else os.fstat(self._file).st_mtime_ns

    def release(self) -> None:
        """Release the lock if it is held, and mark the release in its file."""
        was_held = self.is_held
        super().release()
        if was_held and self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, b"\0", 0)


class _AccountTurn(_Lock):
    """The lock of an account: a byte of the file, held by this connection. On Linux only."""

    _byte = 0

    def acquire_for(self, account_id: str, seconds: float) -> None:
        """Acquire the lock of an account. Raises OperationalError (BUSY) after this long."""
        self._byte, self.is_held = zlib.crc32(account_id.encode()), True
        deadline, pause = time.monotonic() + seconds, POLL_SECONDS
        while not self._set(fcntl.F_WRLCK):
            if time.monotonic() > deadline:
                self.is_held = False
                error = sqlite3.OperationalError("database is locked by requests of this account")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            time.sleep(pause)
            pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)

    def release(self) -> None:
        """Release the lock if it is held."""
        if self.is_held:
            self._set(fcntl.F_UNLCK)
            self.is_held = False

    def _set(self, kind: int) -> bool:
        if self._file is None or OPEN_FILE_LOCK is None:
            return True
        lock = struct.pack("hhqqi", kind, os.SEEK_SET, self._byte, 1, 0)  # `struct flock`
        try:
            fcntl.fcntl(self._file, OPEN_FILE_LOCK, lock)
        except OSError as error:  # other errors: a file system without locks
            return not isinstance(error, BlockingIOError | PermissionError)
        return True


class _Wal:
    """An estimate of how much of this process's writing the WAL still holds."""

    def __init__(self) -> None:
        self._rows = 0
        # The first change of this process checkpoints what earlier processes left.
        self.is_almost_copied = True

    def is_long(self, rows: int) -> bool:
        """Count changed rows; true when it is time for a checkpoint."""
        self._rows += rows
        if self._rows < WAL_ROWS:
            return False
        self._rows = 0
        return True


_wal = _Wal()


def _leave_queues() -> None:
    # A forked child shares its parent's locks, and would hold them as long as it lives.
    for driver in list(_drivers):
        driver.leave_queue()


_drivers: WeakSet[Driver] = WeakSet()
os.register_at_fork(after_in_child=_leave_queues)
