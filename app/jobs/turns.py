"""Turns of accounts at a dispatcher: with RQ, it claims due rows only for accounts that a job runs
for.

The job lasts until its account has nothing left to claim. What a slow receiver takes long for goes
on without it, and an account with very much to do queues again: jobs of others get their turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.jobs import queue

PATIENCE_SECONDS = 1
LONGEST_SECONDS = 10


@dataclass
class Turn:
    began: float = field(default_factory=time.monotonic)
    requests: int = 1
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds(self) -> float:
        """Its seconds so far."""
        return time.monotonic() - self.began


class Turns:
    """The accounts that a dispatcher serves."""

    def __init__(self, queue_name: str, woken: threading.Event, account_id: str = "") -> None:
        """Serve those of `take`, or only this account until it has nothing left to do."""
        self._queue, self._woken, self._is_alone = queue_name, woken, bool(account_id)
        self._lock = threading.Lock()
        self._turns = {account_id: Turn()} if account_id else {}

    def take(self, account_id: str) -> None:
        """Return when an account's turn is over, or at once where it has one already."""
        with self._lock:
            known = self._turns.get(account_id)
            turn = self._turns.setdefault(account_id, Turn())
            turn.requests += known is not None
        self._woken.set()
        if known is None:
            turn.over.wait()

    def requests(self) -> dict[str, int] | None:
        """The number of requests for each account's turn; None if all accounts are served."""
        if not self._is_alone and not queue.uses_rq.is_set():
            return None
        with self._lock:
            return {account_id: turn.requests for account_id, turn in self._turns.items()}

    @property
    def any(self) -> bool:
        """Whether it is anybody's turn."""
        return bool(self._turns)

    def end(self, looked: Mapping[str, int], busy: Collection[str], slow: Collection[str]) -> None:
        """End turns of accounts without anything to claim, by their `requests` before the look.

        Accounts that are `busy` keep their turn; those with only `slow` work do for a moment.
        """
        with self._lock:
            for account_id, turn in list(self._turns.items()):
                patience = turn.seconds < PATIENCE_SECONDS or self._is_alone
                works = account_id in busy or (account_id in slow and patience)
                if looked.get(account_id) == turn.requests and not works:
                    self._end(account_id)
                elif turn.seconds > LONGEST_SECONDS and not self._is_alone:
                    self._end(account_id, queue_again=True)

    def finished(self, account_id: str) -> None:
        """Note that work of an account is over: it may have more to do, and no job any more."""
        with self._lock:
            turn = self._turns.get(account_id)
            if turn:
                turn.requests += 1
        if turn is None:
            queue.announce(self._queue, account_id)

    def close(self) -> None:
        """End all turns; another process goes on."""
        with self._lock:
            for account_id in list(self._turns):
                self._end(account_id, queue_again=True)

    def _end(self, account_id: str, *, queue_again: bool = False) -> None:
        self._turns.pop(account_id).over.set()
        if queue_again:
            queue.announce(self._queue, account_id)


Run = Callable[[Turns, threading.Event, Callable[[], bool]], None]
_serving: dict[str, Turns] = {}


@contextmanager
def serving(queue_name: str, woken: threading.Event) -> Iterator[Turns]:
    """The turns at the dispatcher that serves a queue in this process."""
    turns = _serving[queue_name] = Turns(queue_name, woken)
    try:
        yield turns
    finally:
        del _serving[queue_name]
        turns.close()


def served(queue_name: str) -> Turns:
    """The turns at the dispatcher that serves a queue in this process."""
    return _serving[queue_name]


def take(queue_name: str, account_id: str, run: Run) -> None:
    """Give an account its turn at this process's dispatcher, or `run` one for it alone."""
    turns = _serving.get(queue_name)
    if turns:
        turns.take(account_id)
        return
    woken = threading.Event()
    alone = Turns(queue_name, woken, account_id)
    run(alone, woken, lambda: alone.any)
