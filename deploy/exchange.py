"""One request and its response, by granian's threads: none of them waits for a client.

A thread that would have to wait leaves the exchange, and whichever thread granian tells of what
arrived, or was taken, goes on with it. What takes longer than `deploy/serving.py` says is given up.
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

IN_MEMORY = 64 * 1024  # bytes of a body; a longer one is in a temporary file
MOST_ON_DISK = 256 * 2**20  # bytes of all bodies that a process has in temporary files
MOST_BYTES = 10 * 1024 * 1024  # where the application does not say
STEP_SECONDS = 0.25
COMMON = {
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "granian",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multiprocess": True,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
NEEDED = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}
GONE = {"type": "http.disconnect"}
Application = Callable[..., Iterable[bytes]]

log = logging.getLogger("_granian")  # granian's own


class Deadlines:
    """Cancels futures that are pending for too long."""

    def __init__(self) -> None:
        self._pending: dict[Exchange, tuple[Any, float]] = {}

    def start(self) -> None:
        """Begin to watch, in a thread."""
        threading.Thread(target=self._watch, name="deadlines", daemon=True).start()

    def set(self, exchange: Exchange, future: Any, moment: float) -> None:
        """Have a future be cancelled at a moment."""
        self._pending[exchange] = future, moment

    def clear(self, exchange: Exchange) -> None:
        """Leave the future of an exchange alone."""
        self._pending.pop(exchange, None)

    def _watch(self) -> None:
        while True:
            time.sleep(STEP_SECONDS)
            self._cancel_overdue()

    def _cancel_overdue(self) -> None:
        # A function of its own, or the thread's variables would keep the last connection open.
        now = time.monotonic()
        for future, moment in self._pending.copy().values():
            if now > moment:
                future.cancel()


class DiskSpace:
    """Counts the bytes of bodies in temporary files: anybody may send many at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = 0

    def take(self, size: int) -> None:
        """Take space. Raises OSError where there is not as much left."""
        with self._lock:
            if self._used + size > MOST_ON_DISK:
                raise OSError("too many large bodies at once")
            self._used += size

    def release(self, size: int) -> None:
        """Give space back."""
        with self._lock:
            self._used -= size


disk_space = DiskSpace()


class UnreadableBody:
    """A body that is malformed, or broke off."""

    def read(self, size: int = -1) -> bytes:
        """Refuse, in the way that the application makes a 400 of."""
        raise OSError("the body broke off")

    readline = read


def begin(request: Any, application: Application, most_bytes: int, deadlines: Deadlines) -> None:
    """Begin to answer one of granian's requests."""
    try:
        exchange = Exchange(request, application, most_bytes, deadlines)
    except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
        request.err(error)
    else:
        exchange.begin()


class Exchange:
    """A request that is read, answered and sent, in steps: `granian` is its side of it."""

    def __init__(
        self, granian: Any, application: Application, most_bytes: int, deadlines: Deadlines
    ) -> None:
        self._granian, self._protocol = granian, granian.proto
        self._application, self._deadlines = application, deadlines
        self._context = copy_context()  # of the application, whichever thread goes on
        self._environ = environ_of(granian.scope)
        self._most_bytes = most_bytes
        self._status, self._headers = "", list[tuple[str, str]]()
        self._pieces: Iterator[bytes] = iter(())
        self._result: Iterable[bytes] = ()
        self._gone = False
        self._on_disk = 0

    def begin(self) -> None:
        """Answer, or receive the body first."""
        self._guarded(self._begin)

    def _begin(self) -> None:
        self._length = int(self._environ.get("CONTENT_LENGTH") or 0)
        chunked = "HTTP_TRANSFER_ENCODING" in self._environ
        if not chunked and not 0 < self._length <= self._most_bytes:
            self._environ["wsgi.input"] = BytesIO()
            self._answer()
            return
        if chunked:
            self._length = self._most_bytes + 1
        self._body: IO[bytes] = BytesIO()
        self._received = 0
        self._deadline = time.monotonic() + serving.REQUEST_SECONDS
        self._receive(self._protocol.receive())

    def _receive(self, future: Any) -> None:
        while not _is_pending(future):
            if self._take(_result_of(future)):
                return
            future = self._protocol.receive()
        moment = min(self._deadline, time.monotonic() + serving.READ_SECONDS)
        self._leave(future, moment, self._receive)

    def _take(self, message: dict[str, Any] | None) -> bool:
        """Whether that was the last of the body."""
        if message is None:
            self._refuse(*serving.too_slow())
            return True
        if message["type"] != "http.request":
            self._environ["wsgi.input"] = UnreadableBody()
            self._answer()
            return True
        try:
            self._keep(message["body"])
        except OSError:
            self._refuse("503 Service Unavailable", "There is no room for the body of the request.")
            return True
        if self._received < self._length and message["more_body"]:
            return False
        self._answer_received()
        return True

    def _keep(self, piece: bytes) -> None:
        before, self._received = self._received, self._received + len(piece)
        if self._received > IN_MEMORY:
            size = self._received - self._on_disk
            disk_space.take(size)
            self._on_disk += size
        if self._received > IN_MEMORY >= before:
            start, self._body = self._body, TemporaryFile()  # noqa: SIM115 - closed with itself
            start.seek(0)
            self._body.write(start.read())
        self._body.write(piece)

    def _leave(self, future: Any, moment: float, then: Callable[[Any], None]) -> None:
        def go_on(future: Any) -> None:
            self._deadlines.clear(self)
            self._guarded(then, future)

        self._deadlines.set(self, future, moment)
        future.add_done_callback(go_on)

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
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
        self._headers, body = serving.refusal(status, message)
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
        # It tells of a body that is none first, and then that nobody is there any more.
        if _is_pending(future):
            future.add_done_callback(self._watch_client)
        elif _result_of(future)["type"] == "http.request":
            self._watch_client(self._protocol.receive())
        else:
            self._gone = True

    def _stream(self, future: Any) -> None:
        while future is not None and not _is_pending(future):
            future = self._context.run(self._send_next, future)
        if future is not None:
            self._leave(future, time.monotonic() + serving.WRITE_SECONDS, self._stream)

    def _send_next(self, taken: Any) -> Any:
        client_waits = not self._gone and _result_of(taken) is not None
        piece = next(self._pieces, None) if client_waits else None
        if piece is not None:
            return self._send(piece)
        if client_waits:
            self._send(b"", more=False)
        self._close()
        self._granian.done()  # which breaks off an answer that is not over
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


def _result_of(future: Any) -> Any:
    """The message that a future is about; None where it was cancelled."""
    if not hasattr(future, "result"):  # there was nothing to wait for
        return GONE
    try:
        return future.result() or GONE
    except CancelledError:
        return None


@lru_cache(1024)
def _key_of(name: bytes) -> str:
    # An underscore would make a header count as another, which a proxy may vouch for.
    if b"_" in name:
        return ""
    return NEEDED.get(name) or "HTTP_" + name.decode("latin1").upper().replace("-", "_")


def environ_of(scope: dict[str, Any]) -> dict[str, Any]:
    """The environment of WSGI that says what a scope of ASGI does."""
    server, port = scope["server"]
    environ = COMMON | {
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
        if not (key := _key_of(name)):
            continue
        text = value.decode("latin1")
        if key in environ and name not in NEEDED:
            text = f"{environ[key]}{'; ' if name == b'cookie' else ','}{text}"
        environ[key] = text
    return environ
