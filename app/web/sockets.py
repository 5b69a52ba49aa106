"""Connections that leave the threads of the web server for the loop of the process (ADR 31).

`Handover` takes a request's socket from the server, whose thread is then free. The server keeps its
descriptor, but it now leads to a closed pair of sockets: the server's response fails with EPIPE
there, as if the client had gone, and it cleans up. One asyncio loop per process, in a daemon
thread, serves all streams and large downloads; a registry counts each kind.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import structlog
from flask import Response
from werkzeug.http import http_date

from app.errors import TooManyRequests, Unavailable, error_location

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = structlog.get_logger()
MACOS_MAX_FILES = 10_240  # OPEN_MAX: setrlimit(2) of macOS takes no more, whatever the hard limit
RETRY_SECONDS = 15


class Service(Protocol):
    """Serves a connection in the loop once the web server has given it away."""

    def count(self) -> None:
        """Count the connection; in the thread of the request."""
        ...

    def serve(self, head: bytes, sock: socket.socket) -> Coroutine[object, object, None]:
        """Send the head of the response and the rest, and close the socket; in the loop."""
        ...


class Handover(Response):
    """A response whose connection goes on in the loop."""

    automatically_set_content_length = False

    def __init__(self, service: Service, *, status: int, headers: dict[str, str]) -> None:
        super().__init__(status=status, headers=headers)
        if "Content-Type" not in headers:
            del self.headers["Content-Type"]
        self._service = service

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Take the socket over; the server writes to nobody."""
        server_socket = find_socket(environ)
        if server_socket is None or environ["REQUEST_METHOD"] == "HEAD":
            return super().__call__(environ, start_response)
        sock = _take(server_socket)
        headers = [*self.get_wsgi_headers(environ), ("Date", http_date())]
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in headers)]
        head = "\r\n".join([*lines, "", ""]).encode("latin1")
        self._service.count()
        running = current_loop()
        running.call_soon_threadsafe(
            lambda: running.create_task(self._service.serve(head, sock)),
            context=Context(),  # this one's would keep the request as long as the connection lasts
        )
        start_response(self.status, [("Connection", "close")])
        return ()


def find_socket(environ: WSGIEnvironment) -> socket.socket | None:
    """The socket of a request; None if the server has none to give, or encrypts."""
    found = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
    if not isinstance(found, socket.socket) or isinstance(found, ssl.SSLSocket):
        return None
    return found


def _take(server_socket: socket.socket) -> socket.socket:
    left, right = socket.socketpair()
    with left, right:
        taken = server_socket.dup()
        os.dup2(left.fileno(), server_socket.fileno(), inheritable=False)
    taken.setblocking(False)
    return taken


_lock = threading.Lock()
_loops = dict[int, asyncio.AbstractEventLoop]()


def current_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; starts it at the first connection."""
    process = os.getpid()  # threads do not survive a fork
    with _lock:
        if process not in _loops:
            _loops[process] = _start_loop()
        return _loops[process]


def _start_loop() -> asyncio.AbstractEventLoop:
    _raise_file_limit()
    loop = Context().run(asyncio.new_event_loop)  # which would keep the request that starts it
    loop.set_exception_handler(_log_error)
    threading.Thread(target=loop.run_forever, name="connections", daemon=True).start()
    return loop


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, MACOS_MAX_FILES):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def _log_error(loop: object, context: dict[str, Any]) -> None:
    # asyncio would log the values, too.
    error = context.get("exception")
    log.error("connection failed", **(error_location(error) if error else {}))


class Counted(Protocol):
    """A connection of an account."""

    account_id: str


Member = TypeVar("Member", bound=Counted)


class Registry(Generic[Member]):
    """The open connections of one kind. Safe in all threads."""

    def __init__(self, kind: str) -> None:
        self._kind, self._lock = kind, threading.Lock()
        self._open: set[Member] = set()
        self._by_account = Counter[str]()

    def check_room(self, account_id: str, most: int, most_of_account: int) -> None:
        """Raise Unavailable or TooManyOpen if there are too many already."""
        if len(self._open) >= most:
            raise Unavailable(f"This process has too many {self._kind}. Try again later.")
        if self._by_account[account_id] >= most_of_account:
            raise TooManyOpen(self._kind)

    def add(self, connection: Member) -> None:
        with self._lock:
            self._open.add(connection)
            self._by_account[connection.account_id] += 1

    def remove(self, connection: Member) -> None:
        """Count a connection no more."""
        with self._lock:
            if connection not in self._open:
                return
            self._open.remove(connection)
            self._by_account[connection.account_id] -= 1
            if not self._by_account[connection.account_id]:
                del self._by_account[connection.account_id]

    def all(self) -> list[Member]:
        with self._lock:
            return list(self._open)

    def wait_closed(self, seconds: float) -> None:
        """Wait until all are closed, but no longer than this."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while self.all() and time.monotonic() < deadline:
            pause.wait(0.01)


class TooManyOpen(TooManyRequests):
    """Too many connections of one account."""

    error = "limit_reached"

    def __init__(self, kind: str) -> None:
        message = f"Your account has too many open {kind}. Close some, or try again later."
        super().__init__(RETRY_SECONDS, message)
