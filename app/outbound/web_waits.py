"""Limits the threads that wait for hosts that users name: 1 of an account, 2 of a web process.

Whoever names a host decides how long it takes to answer. Others wait for a place, at most a second,
but only as long as that costs a fifth of a thread; further requests are refused at once. Accounts
that used up their share have one place together, which leaves one for everybody else. Jobs wait
elsewhere, and are not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flask import has_request_context

from app.context import tenancy
from app.errors import TooManyRequests

IN_ALL = 2
WAIT_SECONDS, REQUEST_SECONDS = 1, 3
ALLOWED_SECONDS, SHARE, LONGEST_DEBT = 2.5, 0.2, 60
MAX_KEYS = 1000
ALL_WAITING = ""
BUSY = "Another request waits for a server of this account. Try again in a moment."

_is_free_to_wait: ContextVar[bool] = ContextVar("is_free_to_wait", default=False)
_lookups_until: ContextVar[float | None] = ContextVar("lookups_until", default=None)


class Busy(Exception):
    """Raised if too many threads wait already."""


class Places:
    """The places of a process: one for each key, and so many in all."""

    def __init__(self, in_all: int) -> None:
        self._in_all = in_all
        self._changed = threading.Condition()
        self._taken: set[str] = set()
        self._spent: dict[str, tuple[float, float]] = {}  # seconds of threads, and when, by key

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the place of a key. Raises Busy."""
        self._wait_for_place(key)
        began = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(key)
                self._charge(key, time.monotonic() - began)
                self._changed.notify_all()

    def _wait_for_place(self, key: str) -> None:
        with self._changed:
            if not self._has_place(key):
                if self._is_overdrawn(key) or self._is_overdrawn(ALL_WAITING):
                    raise Busy
                # In advance: others must not begin to wait meanwhile.
                self._charge(ALL_WAITING, WAIT_SECONDS)
                began = time.monotonic()
                has_place = self._changed.wait_for(lambda: self._has_place(key), WAIT_SECONDS)
                waited = time.monotonic() - began
                self._charge(ALL_WAITING, waited - WAIT_SECONDS)
                self._charge(key, waited)
                if not has_place:
                    raise Busy
            self._taken.add(key)

    def _has_place(self, key: str) -> bool:
        if key in self._taken or len(self._taken) >= self._in_all:
            return False
        return not (self._is_overdrawn(key) and any(map(self._is_overdrawn, self._taken)))

    def _charge(self, key: str, seconds: float) -> None:
        if len(self._spent) >= MAX_KEYS and key not in self._spent:
            self._spent.clear()
        spent = min(max(self._seconds_of(key) + seconds, 0), LONGEST_DEBT)
        self._spent[key] = spent, time.monotonic()

    def _seconds_of(self, key: str) -> float:
        spent, since = self._spent.get(key, (0.0, 0.0))
        return max(spent - (time.monotonic() - since) * SHARE, 0)

    def _is_overdrawn(self, key: str) -> bool:
        return self._seconds_of(key) >= ALLOWED_SECONDS


_places = Places(IN_ALL)


@contextmanager
def place(account_id: str | None = None) -> Iterator[None]:
    """Hold a place for an account whose users name the host; the caller's by default. Raises Busy.

    Does nothing within another place, and outside of web requests.
    """
    if _is_free_to_wait.get() or not has_request_context():
        yield
        return
    with _places.hold(account_id or tenancy.current()), for_operator():
        yield


@contextmanager
def for_operator() -> Iterator[None]:
    """Take no place in the block: the operator, or this program, names the hosts."""
    token = _is_free_to_wait.set(True)
    try:
        yield
    finally:
        _is_free_to_wait.reset(token)


@contextmanager
def place_or_429(account_id: str | None = None) -> Iterator[None]:
    """The same for requests of signed-in callers. Raises TooManyRequests."""
    try:
        with place(account_id):
            yield
    except Busy:
        raise TooManyRequests(REQUEST_SECONDS, BUSY) from None


@contextmanager
def one_lookup_deadline() -> Iterator[None]:
    """Let all DNS look-ups in the block have 3 seconds together."""
    token = _lookups_until.set(time.monotonic() + REQUEST_SECONDS)
    try:
        yield
    finally:
        _lookups_until.reset(token)


def lookup_deadline() -> float:
    """Until when a DNS look-up may take."""
    return _lookups_until.get() or time.monotonic() + REQUEST_SECONDS


def seconds(wanted: float) -> float:
    """The time limit of a request: what is wanted, in a web request at most 3 seconds."""
    return min(wanted, REQUEST_SECONDS) if has_request_context() else wanted
