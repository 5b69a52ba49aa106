"""Accounts take turns: one account's backlog delays others by a request, not by all.

gunicorn hands requests to its threads in order of arrival. It has many of them, as one that waits
costs little; here a few requests run at once, as each more that does makes all wait longer for the
interpreter, and the others wait in a queue per account. While others have requests, one account
gets half of the places, and has at most MAX_WAITING requests waiting. An account alone gets
everything, but for one place more, which only serves accounts that have no request running: the
slowest requests of some do not make the next account wait. Who waits for a client holds no place.
"""

from __future__ import annotations

import hashlib
import json
import re
import select
import socket
import struct
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from flask import Flask

from app.auth import tokens
from app.auth.guard.authenticate import API_KEY, AUTHORIZATION
from app.auth.guard.authorize import ACCOUNT
from app.auth.portals import PATH
from app.errors import Unauthorized

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PLACES = 4
MAX_WAITING = 100
RECENT_SECONDS = 1
SHORT_BYTES = 64 * 1024  # of a body that is received before its request takes a place
PIECE = 16 * 1024  # of an answer: what a socket that is ready to be written to takes at once
# Answers that may wait for their readers at a time, half of them of an account: an export holds a
# connection to the database (app/db/engine.py), of which the requests that run need some.
READERS = 8
# One of each runs beside the places: that all of them hang is what monitors want to know.
PROBES = ("/health", "/live", "/ready", "/metrics")

CONSOLE_COOKIE = re.compile(r"(?:^|;) *((?:__Host-)?atrium_(?:console|setup)=[^;]+)", re.ASCII)
PORTAL_COOKIE = re.compile(r"(?:^|;) *(atrium_portal=[^;]+)", re.ASCII)
ACCESS_TOKEN = re.compile(r"bearer +([\w-]+\.[\w-]+\.[\w-]+)", re.IGNORECASE | re.ASCII)
REFUSAL = {
    "error": "quota_exceeded",
    "message": "Too many requests of this account wait to be served, while others send some, too.",
    "quota": "concurrent_requests",
    "limit": MAX_WAITING,
}
_NOBODY = object()

Account = str | None


class Turns:
    """Places for requests that run, and a queue per account of those that wait for one."""

    def __init__(self, places: int = PLACES) -> None:
        self._places, self._most = places, max(1, places // 2)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Account, deque[threading.Lock]] = OrderedDict()
        self._running: Counter[Account] = Counter()
        self._aside: Counter[Account] = Counter()
        self._taken = 0
        # The account of the newest request, and when another one sent its last.
        self._newest: object = _NOBODY
        self._newest_at = self._other_at = float("-inf")

    def take(self, account: Account, *, anew: bool = True) -> bool:
        """Wait for a place; returns False if too many new ones of the account wait already."""
        with self._lock:
            now = time.monotonic()
            if account != self._newest:
                self._newest, self._other_at = account, self._newest_at
            self._newest_at = now
            queue = self._waiting.get(account)
            if queue is None and self._may_run(account):
                self._seat(account)
                return True
            if queue is None:
                queue = self._waiting[account] = deque()
            elif anew and len(queue) >= MAX_WAITING and self._has_company(account):
                return False
            turn = threading.Lock()
            turn.acquire()
            queue.append(turn)
        while not turn.acquire(timeout=RECENT_SECONDS):  # `leave` lets it go, or time:
            with self._lock:  # an account is alone once the others have been silent
                self._seat_next()
        return True

    def leave(self, account: Account) -> None:
        """Give a place back, and everything that is free to those whose turn it is."""
        with self._lock:
            self._taken -= 1
            self._running[account] -= 1
            if not self._running[account]:
                del self._running[account]
            self._seat_next()

    def step_aside(self, account: Account) -> bool:
        """Give a place back to wait for a reader; returns False if there is no room for that."""
        with self._lock:
            if self._aside.total() >= READERS or self._aside[account] >= READERS // 2:
                return False
            self._aside[account] += 1
        self.leave(account)
        return True

    def step_back(self, account: Account) -> None:
        """Take a place at once: those who have all may wait for a lock that this request holds."""
        with self._lock:
            self._seat(account)
            self._aside[account] -= 1
            if not self._aside[account]:
                del self._aside[account]

    def are_wanted(self) -> bool:
        """Whether anybody waits for a place."""
        return bool(self._waiting)

    def _seat(self, account: Account) -> None:
        self._taken += 1
        self._running[account] += 1

    def _seat_next(self) -> None:
        while (following := next(filter(self._may_run, self._waiting), _NOBODY)) is not _NOBODY:
            self._seat(following)  # type: ignore[arg-type]
            queue = self._waiting[following]  # type: ignore[index]
            queue.popleft().release()
            if queue:
                self._waiting.move_to_end(following)  # type: ignore[arg-type]
            else:
                del self._waiting[following]  # type: ignore[arg-type]

    def _may_run(self, account: Account) -> bool:
        running = self._running.get(account, 0)
        if self._taken >= self._places + (not running):
            return False
        return running < self._most or not self._has_company(account)

    def _has_company(self, account: Account) -> bool:
        last = self._other_at if account == self._newest else self._newest_at
        return last > time.monotonic() - RECENT_SECONDS


class Callers:
    """Whom requests are from: the account of the credential.

    Access tokens say it themselves; other credentials are known once a request was answered. The
    unknown share a queue: who makes up credentials must not have a turn for each.
    """

    MOST = 10_000

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._accounts: dict[bytes, str] = {}

    def of(self, credential: str) -> Account:
        """Return the account of a credential; None if it is not known yet."""
        known = self._accounts.get(_digest(credential))
        if known is None and (token := ACCESS_TOKEN.fullmatch(credential)):
            with self._app.app_context():
                try:
                    known = str(tokens.read(token[1], tokens.ACCESS)["account_id"])
                except Unauthorized:
                    return None
            self.learn(credential, known)
        return known

    def learn(self, credential: str, account_id: Account) -> None:
        """Remember the account of a credential that the application has checked, if it has one."""
        key = _digest(credential)
        if account_id is None:
            self._accounts.pop(key, None)
        elif credential and self._accounts.get(key) != account_id:
            if len(self._accounts) >= self.MOST:
                self._accounts.clear()
            self._accounts[key] = account_id


def _credential(environ: WSGIEnvironment) -> str:
    """The credential of a request, however it is spelled and whatever other cookies there are."""
    scheme, _, value = environ.get(AUTHORIZATION, "").strip().partition(" ")
    if scheme.lower() == tokens.BEARER:  # what others send is a proxy's, and the same for many
        return f"{tokens.BEARER} {value.strip()}"
    if key := environ.get(API_KEY, "").strip():
        return str(key)
    is_portal = environ["PATH_INFO"].startswith(f"{PATH}/")  # where other cookies do not count
    cookie = (PORTAL_COOKIE if is_portal else CONSOLE_COOKIE).search(environ.get("HTTP_COOKIE", ""))
    return cookie[1] if cookie else ""


def _digest(credential: str) -> bytes:
    # A header may have 8 KiB.
    return hashlib.blake2b(credential.encode("latin1"), digest_size=16).digest()


class FairShare:
    """WSGI middleware whose requests wait for their account's turn."""

    def __init__(self, app: Flask) -> None:
        self._application: WSGIApplication = app.wsgi_app
        self._callers, self._turns = Callers(app), Turns()
        self._probes = {path: threading.Lock() for path in PROBES}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = self._probes.get(environ["PATH_INFO"].rstrip("/"))
        if probe is not None and probe.acquire(blocking=False):
            try:
                return self._application(environ, start_response)
            finally:
                probe.release()
        is_received = _receive(environ)
        credential = _credential(environ)
        account = self._callers.of(credential) if credential else None
        if not self._turns.take(account):
            return _refuse(start_response)
        if not is_received:
            environ["wsgi.input"] = _LongBody(environ["wsgi.input"], self._turns, account)
        is_over = True
        try:
            answer = self._application(environ, start_response)
            if ACCOUNT in environ:
                self._callers.learn(credential, environ[ACCOUNT])
            if not isinstance(answer, (list, tuple, environ.get("wsgi.file_wrapper", tuple))):
                is_over = False
                return _LongAnswer(answer, self._turns, account, environ.get("gunicorn.socket"))
            return answer
        finally:
            if is_over:
                self._turns.leave(account)


class _LongBody:
    """A body whose request gives its place away while it waits for the client."""

    def __init__(self, body: Any, turns: Turns, account: Account) -> None:
        self._body, self._turns, self._account = body, turns, account

    def read(self, size: int = -1) -> bytes:
        return self._wait(self._body.read, size)

    def readline(self, size: int = -1) -> bytes:
        return self._wait(self._body.readline, size)

    def _wait(self, read: Callable[[int], bytes], size: int) -> bytes:
        self._turns.leave(self._account)
        try:
            return read(size)
        finally:
            self._turns.take(self._account, anew=False)


class _LongAnswer:
    """An answer whose request gives its place away while it waits for the client.

    If too many do, it keeps its place, and ends once another request waits for that.
    """

    def __init__(
        self,
        answer: Iterable[bytes],
        turns: Turns,
        account: Account,
        connection: socket.socket | None,
    ) -> None:
        self._answer, self._turns, self._account = answer, turns, account
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._answer:
            for start in range(0, len(piece), PIECE):
                if self._connection is not None:
                    self._wait_for_reader(self._connection)
                yield piece[start : start + PIECE]

    def close(self) -> None:
        """Give the place back."""
        try:
            if close := getattr(self._answer, "close", None):
                close()
        finally:
            self._turns.leave(self._account)

    def _wait_for_reader(self, connection: socket.socket) -> None:
        """Wait until more can be sent. Raises BlockingIOError after the time of a write."""
        if _takes_more(connection, 0):
            return
        size = struct.calcsize("ll")
        seconds, _ = struct.unpack(
            "ll", connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, size)
        )
        if self._turns.step_aside(self._account):
            try:
                is_read = _takes_more(connection, seconds or None)
            finally:
                self._turns.step_back(self._account)
        else:
            ends_at = time.monotonic() + (seconds or float("inf"))
            while not (is_read := _takes_more(connection, 1)):
                if self._turns.are_wanted() or time.monotonic() > ends_at:
                    break
        if not is_read:
            raise BlockingIOError


def _takes_more(connection: socket.socket, seconds: int | None) -> bool:
    ready = select.poll()
    ready.register(connection, select.POLLOUT)
    return bool(ready.poll(None if seconds is None else 1000 * seconds))


def _receive(environ: WSGIEnvironment) -> bool:
    """Receive a short body; returns whether nothing more is to come."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        return False
    if len(length) > len(str(SHORT_BYTES)) or int(length) > SHORT_BYTES:
        return False
    if int(length):
        try:
            environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(int(length)))
        except OSError:  # to the application, the body is cut off
            environ["wsgi.input"] = BytesIO()
    return True


def _refuse(start_response: StartResponse) -> Iterable[bytes]:
    body = json.dumps(REFUSAL).encode()
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Retry-After", "1"),
        ("X-Correlation-ID", str(uuid.uuid4())),
    ]
    start_response("429 Too Many Requests", headers)
    return [body]


def init_app(app: Flask) -> None:
    """Wrap the WSGI application."""
    app.wsgi_app = FairShare(app)  # type: ignore[method-assign]
