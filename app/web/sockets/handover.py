"""Takes a request's socket from the web server, whose thread is then free (docs/adr/0031).

The server keeps its descriptor, but it now leads to a closed pair of sockets: the server's response
fails with EPIPE there, as if the client had gone, and it cleans up.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Coroutine, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Protocol

from flask import Response
from werkzeug.http import http_date

from app.web.sockets import loop

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


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
        running = loop.current()
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
