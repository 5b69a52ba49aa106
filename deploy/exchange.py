"""Handles one request on granian's threads without blocking on the client.

Instead of waiting, a thread leaves the exchange; the thread that granian notifies of received or
sent bytes resumes it. Requests that exceed the timeouts of `deploy/serving.py` are aborted.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from deploy import serving

MAX_MEMORY_BYTES = 64 * 1024  # longer bodies go to a temporary file
MAX_DISK_BYTES = 256 * 2**20  # of all temporary files of a process
DEFAULT_MAX_BYTES = 10 * 1024 * 1024  # if the application sets no limit
STEP_SECONDS = 0.25
BASE_ENVIRON = {
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "granian",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multiprocess": True,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
UNPREFIXED_HEADERS = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}
DISCONNECT = {"type": "http.disconnect"}
Application = Callable[..., Iterable[bytes]]

log = logging.getLogger("_granian")  # granian's own


class Deadlines:
    """Cancels futures that are pending past their deadline."""

    def __init__(self) -> None:
        self._pending: dict[Exchange, tuple[Any, float]] = {}

    def start(self) -> None:
        """Start the watcher thread."""
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def set(self, exchange: Exchange, future: Any, moment: float) -> None:
        """Cancel a future at a moment (monotonic seconds)."""
        self._pending[exchange] = future, moment

    def clear(self, exchange: Exchange) -> None:
        """Remove the deadline of an exchange."""
        self._pending.pop(exchange, None)

    def _watch(self) -> None:
        while True:
            time.sleep(STEP_SECONDS)
            self._cancel_overdue()

    def _cancel_overdue(self) -> None:
        # A separate function: its locals would otherwise keep the last connection open.
        now = time.monotonic()
        for future, moment in self._pending.copy().values():
            if now > moment:
                future.cancel()


class DiskSpace:
    """Limits the bytes that all temporary files take, as anyone can send many bodies at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = 0

    def reserve(self, size: int) -> None:
        """Reserve space. Raises OSError if not enough is left."""
        with self._lock:
            if self._used + size > MAX_DISK_BYTES:
                raise OSError("too many large bodies at once")
            self._used += size

    def release(self, size: int) -> None:
        """Release reserved space."""
        with self._lock:
            self._used -= size


disk_space = DiskSpace()


class UnreadableBody:
    """A body that is malformed or incomplete."""

    def read(self, size: int = -1) -> bytes:
        """Raise the error that the application answers with a 400."""
        raise OSError("incomplete request body")

    readline = read


def begin(request: Any, application: Application, max_bytes: int, deadlines: Deadlines) -> None:
    """Start to handle a request of granian."""
    try:
        exchange = Exchange(request, application, max_bytes, deadlines)
    except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
        request.err(error)
    else:
        exchange.begin()


class Exchange:
    """A request that is received, answered and sent in steps; `granian` is granian's request."""

    def __init__(
        self, granian: Any, application: Application, max_bytes: int, deadlines: Deadlines
    ) -> None:
        self._granian, self._protocol = granian, granian.proto
        self._application, self._deadlines = application, deadlines
        self._context = copy_context()  # the application's, on whichever thread it resumes
        self._environ = build_environ(granian.scope)
        self._max_bytes = max_bytes
        self._status, self._headers = "", list[tuple[str, str]]()
        self._pieces: Iterator[bytes] = iter(())
        self._result: Iterable[bytes] = ()
        self._gone = False
        self._on_disk = 0

    def begin(self) -> None:
        """Receive the body, if any, and respond."""
        self._run_step(self._begin)

    def _begin(self) -> None:
        self._length = int(self._environ.get("CONTENT_LENGTH") or 0)
        chunked = "HTTP_TRANSFER_ENCODING" in self._environ
        if not chunked and not 0 < self._length <= self._max_bytes:
            self._environ["wsgi.input"] = BytesIO()
            self._answer()
            return
        if chunked:
            self._length = self._max_bytes + 1
        self._body: IO[bytes] = BytesIO()
        self._received = 0
        self._deadline = time.monotonic() + serving.REQUEST_SECONDS
        self._receive(self._protocol.receive())

    def _receive(self, future: Any) -> None:
        while not _is_pending(future):
            if self._take(_future_result(future)):
                return
            future = self._protocol.receive()
        moment = min(self._deadline, time.monotonic() + serving.READ_SECONDS)
        self._resume_later(future, moment, self._receive)

    def _take(self, message: dict[str, Any] | None) -> bool:
        """Handle a message; returns whether the body is complete or refused."""
        if message is None:
            self._refuse(*serving.timeout_response())
            return True
        if message["type"] != "http.request":
            self._environ["wsgi.input"] = UnreadableBody()
            self._answer()
            return True
        try:
            self._append(message["body"])
        except OSError:
            self._refuse(
                "503 Service Unavailable", "Too many large requests at once. Try again later."
            )
            return True
        if self._received < self._length and message["more_body"]:
            return False
        self._answer_received()
        return True

    def _append(self, chunk: bytes) -> None:
        before, self._received = self._received, self._received + len(chunk)
        if self._received > MAX_MEMORY_BYTES:
            size = self._received - self._on_disk
            disk_space.reserve(size)
            self._on_disk += size
        if self._received > MAX_MEMORY_BYTES >= before:
            memory, self._body = self._body, TemporaryFile()  # noqa: SIM115 - closed with itself
            memory.seek(0)
            self._body.write(memory.read())
        self._body.write(chunk)

    def _resume_later(self, future: Any, moment: float, step: Callable[[Any], None]) -> None:
        def resume(completed: Any) -> None:
            self._deadlines.clear(self)
            self._run_step(step, completed)

        self._deadlines.set(self, future, moment)
        future.add_done_callback(resume)

    def _run_step(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            self._granian.err(error)
            with suppress(Exception):
                self._context.run(self._close)

    def _refuse(self, status: str, message: str) -> None:
        self._release_disk_space()
        log.warning("request refused: %s", status)
        self._status = status
        self._headers, body = serving.error_response(status, message)
        self._send_whole(body)

    def _answer_received(self) -> None:
        self._body.seek(0)
        if self._environ.pop("HTTP_TRANSFER_ENCODING", None):
            self._environ["CONTENT_LENGTH"] = str(self._received)
        self._environ["wsgi.input"] = self._body
        self._answer()

    def _answer(self) -> None:
        first = self._context.run(self._first_piece)
        length = next((v for k, v in self._headers if k.lower() == "content-length"), None)
        is_head = self._environ["REQUEST_METHOD"] == "HEAD"
        if first is None or is_head or length == str(len(first)):
            self._context.run(self._close)
            self._send_whole(first or b"")
            return
        self._start()
        self._watch_client(self._protocol.receive())
        self._stream(self._send(first))

    def _first_piece(self) -> bytes | None:
        self._result = self._application(self._environ, self._start_response)
        self._pieces = iter(self._result)
        return next(self._pieces, None)

    def _start_response(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
        self._status, self._headers = status, headers

    def _start(self) -> None:
        headers = [(k.encode("latin1"), v.encode("latin1")) for k, v in self._headers]
        status = int(self._status[:3])
        self._protocol.send({"type": "http.response.start", "status": status, "headers": headers})

    def _send(self, body: bytes, more: bool = True) -> Any:
        return self._protocol.send({"type": "http.response.body", "body": body, "more_body": more})

    def _send_whole(self, body: bytes) -> None:
        self._start()
        self._send(body, more=False)
        self._granian.done()

    def _watch_client(self, future: Any) -> None:
        # The first message is an empty body, the second the disconnect.
        if _is_pending(future):
            future.add_done_callback(self._watch_client)
        elif _future_result(future)["type"] == "http.request":
            self._watch_client(self._protocol.receive())
        else:
            self._gone = True

    def _stream(self, future: Any) -> None:
        while future is not None and not _is_pending(future):
            future = self._context.run(self._send_next, future)
        if future is not None:
            self._resume_later(future, time.monotonic() + serving.WRITE_SECONDS, self._stream)

    def _send_next(self, sent: Any) -> Any:
        client_waits = not self._gone and _future_result(sent) is not None
        piece = next(self._pieces, None) if client_waits else None
        if piece is not None:
            return self._send(piece)
        if client_waits:
            self._send(b"", more=False)
        self._close()
        self._granian.done()  # aborts an incomplete response
        return None

    def _release_disk_space(self) -> None:
        size, self._on_disk = self._on_disk, 0
        disk_space.release(size)

    def _close(self) -> None:
        self._release_disk_space()
        result, self._result = self._result, ()
        if close := getattr(result, "close", None):
            close()


def _is_pending(future: Any) -> bool:
    return hasattr(future, "done") and not future.done()


def _future_result(future: Any) -> Any:
    """The future's message; None if it was cancelled."""
    if not hasattr(future, "result"):  # it completed at once
        return DISCONNECT
    try:
        return future.result() or DISCONNECT
    except CancelledError:
        return None


@lru_cache(1024)
def _environ_key(name: bytes) -> str:
    # With underscores, X_Forwarded_For would pass for the proxy's X-Forwarded-For.
    if b"_" in name:
        return ""
    return UNPREFIXED_HEADERS.get(name) or "HTTP_" + name.decode("latin1").upper().replace("-", "_")


def build_environ(scope: dict[str, Any]) -> dict[str, Any]:
    """Convert an ASGI scope to a WSGI environ."""
    server, port = scope["server"]
    environ = BASE_ENVIRON | {
        "QUERY_STRING": scope["query_string"].decode("latin1"),
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin1"),
        "REMOTE_ADDR": scope["client"][0],
        "REQUEST_METHOD": scope["method"],
        "SERVER_NAME": server,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "wsgi.url_scheme": scope["scheme"],
    }
    for name, value in scope["headers"]:
        if not (key := _environ_key(name)):
            continue
        text = value.decode("latin1")
        if key in environ and name not in UNPREFIXED_HEADERS:
            text = f"{environ[key]}{'; ' if name == b'cookie' else ','}{text}"
        environ[key] = text
    return environ
