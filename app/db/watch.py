"""Cancels statements that run past their deadline, or whose client has gone.

One thread for each process, which sleeps while no statement of a request runs. It needs nothing of
the statement's own thread, which waits inside the driver.
"""

from __future__ import annotations

import math
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

import psycopg2

from app.context.deadline import Client

STEP_SECONDS = 0.1
CLIENT_SECONDS = 1
"""Only the clients of statements that run longer than this are looked at."""
RDHUP = getattr(select, "POLLRDHUP", select.POLLHUP)  # Linux only
GONE = RDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class Watch:
    """The watch over the statement of one connection."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        self._lock = threading.Lock()
        self._started = 0.0
        self.until: float | None = None
        """The time at which the statement is cancelled; None while nothing is watched."""
        self._client: Client | None = None
        _watches.add(self)

    def start(self, seconds: float, client: Client | None) -> None:
        """Watch what begins now, in the place of what was watched before."""
        now = time.monotonic()
        with self._lock:
            self._started, self.until, self._client = now, now + seconds, client
        if now + seconds <= _watcher.looks_at:
            _watcher.wake()

    def stop(self) -> None:
        """Cancel nothing from now on."""
        if self.until is not None:
            with self._lock:  # while it is being cancelled, nothing else may begin
                self.until = self._client = None

    def check(self) -> float | None:
        """Cancel what must not go on; returns in how many seconds to look again, None for never."""
        with self._lock:
            if self.until is None:
                return None
            now = time.monotonic()
            if now > self.until or (now > self._started + CLIENT_SECONDS and self._is_abandoned()):
                with suppress(sqlite3.Error, psycopg2.Error):  # closed meanwhile
                    self._cancel()
                self.until = self._client = None  # last, as `stop` looks at it without the lock
                return None
            return min(STEP_SECONDS, self.until - now + 0.001)

    def _is_abandoned(self) -> bool:
        if self._client is None or self._client.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._client.fileno(), RDHUP)
        return any(state & GONE for _, state in poll.poll(0))


class _Watcher:
    """The thread of a process."""

    def __init__(self) -> None:
        self.looks_at = math.inf
        """When it looks next, if nobody wakes it before."""
        self._is_awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Look at the connections until none is watched any more."""
        if self._is_awake.is_set():
            return
        with self._lock:
            self._is_awake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = None
        while True:
            self._is_awake.wait(pause)
            self._is_awake.clear()  # before looking: who starts from now on wakes it again
            self.looks_at = math.inf
            pauses = [watch.check() for watch in list(_watches)]
            pause = min((one for one in pauses if one is not None), default=None)
            if pause is not None:
                self.looks_at = time.monotonic() + pause


def _after_fork() -> None:
    global _watcher
    _watcher = _Watcher()  # threads do not survive a fork, and locks may be held
    for watch in list(_watches):
        watch._lock = threading.Lock()


_watches: WeakSet[Watch] = WeakSet()
_watcher = _Watcher()
os.register_at_fork(after_in_child=_after_fork)
