"""Receivers of webhooks on loopback: they note what comes whole, and answer as they are told."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """What a receiver was sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def delivery(self) -> str:
        """The delivery's id."""
        return self.headers["x-service-delivery"]


class Receiver:
    """An HTTP server; `answer` says status and body of the next answers."""

    def __init__(
        self,
        answer: Callable[[Request], tuple[int, str]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.answer = answer or (lambda request: (200, "ok"))
        self.headers: dict[str, str] = {}
        """More headers of its answers."""
        self._server = _Server(("127.0.0.1", 0), self._handler())
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.socket.shutdown(socket.SHUT_RDWR)  # which ends the wait for a connection
        self._server.shutdown()
        self._server.server_close()

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # whoever sent it was killed meanwhile
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body)
                receiver.requests.append(request)
                status, text = receiver.answer(request)
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                if 300 <= status < 400:
                    self.send_header("Location", receiver.url)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args: Any) -> None:
        pass


@contextmanager
def receiving(
    answer: Callable[[Request], tuple[int, str]] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """A receiver for the time of a test."""
    receiver = Receiver(answer, tls)
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def hostile(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does what it likes with each connection once the request has come.

    In the end it cuts off whoever is still connected.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    over, accepted = threading.Event(), list[socket.socket]()

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                behave(connection)
            except OSError:
                pass

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            accepted.append(connection)
            threading.Thread(target=one, args=[connection], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in accepted:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)


def hang(connection: socket.socket) -> None:
    """Never answer."""
    while connection.recv(65536):
        time.sleep(0.05)
