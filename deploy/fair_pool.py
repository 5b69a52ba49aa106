"""Threads that serve callers in turn: one caller's backlog delays others by a request, not by all.

Requests wait in a queue per caller, and a free thread takes the first of the next caller. While
others have requests, one caller gets half of the threads, as each more that is busy makes all wait
longer for the interpreter, and has at most MAX_WAITING requests waiting. A caller alone gets
everything, but for one thread more, which only serves callers who have no request running: the
slowest requests of some do not make the next caller wait.
"""

import hashlib
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

MAX_WAITING = 100
RECENT_SECONDS = 1
ACCESS_TOKEN = re.compile(rb"bearer +([\w-]+\.[\w-]+\.[\w-]+)", re.IGNORECASE | re.ASCII)


_NOBODY = object()


class _Task(NamedTuple):
    """A call that waits for a thread."""

    caller: Hashable
    future: "Future[Any]"
    function: Callable[[Any], Any]
    argument: Any


class _Outcome:
    """Hands any error of the block to a future, as an executor does."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True


class FairPool:
    """A thread pool with a queue per caller; has what gunicorn uses of an executor."""

    def __init__(self, threads: int, caller_of: Callable[[Any], Hashable]) -> None:
        """Start the threads, and one more. `caller_of` returns whom a call's argument is for."""
        self._shared, self._most = threads, max(1, threads // 2)
        self._caller_of = caller_of
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Hashable, deque[_Task]] = OrderedDict()
        self._running: dict[Hashable, int] = {}
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # one for each task; False ends a thread
        self._postponed = 0  # tasks whose token was taken while no thread might serve them
        # The caller of the newest request, and when another one sent its last.
        self._newest: Hashable = None
        self._newest_at = self._other_at = float("-inf")
        self._threads = [
            threading.Thread(target=self._work, name=f"request-{n}", daemon=True)
            for n in range(threads + 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[Any], Any], argument: Any) -> "Future[Any]":
        """Call a function in a thread when it is the caller's turn."""
        task = _Task(self._caller_of(argument), Future(), function, argument)
        with self._lock:
            self._note(task.caller)
            self._waiting.setdefault(task.caller, deque()).append(task)
        self._tokens.put(True)
        return task.future

    def is_full(self, argument: Any) -> bool:
        """Whether the caller has too many requests waiting while others send some, too."""
        caller = self._caller_of(argument)
        waiting = self._waiting.get(caller)
        if waiting is None or len(waiting) < MAX_WAITING:
            return False
        with self._lock:
            return self._has_company(caller)

    def shutdown(self, wait: bool = True, **options: object) -> None:
        """End the threads when they have nothing left to do."""
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads if wait else ():
            thread.join()

    def _note(self, caller: Hashable) -> None:
        now = time.monotonic()
        if caller != self._newest:
            self._newest, self._other_at = caller, self._newest_at
        self._newest_at = now

    def _has_company(self, caller: Hashable) -> bool:
        last = self._other_at if caller == self._newest else self._newest_at
        return last > time.monotonic() - RECENT_SECONDS

    def _work(self) -> None:
        while self._tokens.get():
            task = self._take()
            if task is not None:
                self._run(task)

    def _take(self) -> _Task | None:
        with self._lock:
            caller = next(filter(self._may_run, self._waiting), _NOBODY)
            if caller is _NOBODY:
                self._postponed += 1
                return None
            tasks = self._waiting[caller]
            task = tasks.popleft()
            if tasks:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            self._running[caller] = self._running.get(caller, 0) + 1
            return task

    def _may_run(self, caller: Hashable) -> bool:
        running = self._running.get(caller, 0)
        if running and sum(self._running.values()) >= self._shared:
            return False
        return running < self._most or not self._has_company(caller)

    def _run(self, task: _Task) -> None:
        with _Outcome(task.future):
            try:
                result = task.function(task.argument)
            finally:
                self._end(task.caller)
            task.future.set_result(result)

    def _end(self, caller: Hashable) -> None:
        with self._lock:
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]
            # For the place of this one, and for a free thread in case the others are gone.
            for _ in range(min(2, self._postponed)):
                self._postponed -= 1
                self._tokens.put(True)


class Callers:
    """Whom requests are from: the account of the credential.

    Access tokens say it themselves; other credentials are known once a request was answered.
    """

    MOST = 10_000

    def __init__(self) -> None:
        self._accounts: dict[bytes, str] = {}
        self.account_of_token: Callable[[str], str | None] = lambda token: None
        """Returns the account of an access token that is signed by this service."""

    def of(self, credential: bytes) -> str | None:
        """Return the account of a credential; None if it is not known yet.

        These wait in one queue: who makes up credentials must not have a turn for each.
        """
        known = self._accounts.get(_digest(credential))
        if known is None and (token := ACCESS_TOKEN.fullmatch(credential)):
            known = self.account_of_token(token[1].decode())
            if known is not None:
                self.learn(credential, known)
        return known

    def learn(self, credential: bytes, account_id: str) -> None:
        """Remember the account of a credential that the application has checked."""
        key = _digest(credential)
        if credential and self._accounts.get(key) != account_id:
            if len(self._accounts) >= self.MOST:
                self._accounts.clear()
            self._accounts[key] = account_id


def _digest(credential: bytes) -> bytes:
    # A header may have 8 KiB, and a caller may spell a credential in many ways.
    return hashlib.blake2b(credential, digest_size=16).digest()
