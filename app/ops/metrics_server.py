"""A worker's port for `/metrics`, as it serves no requests."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.exceptions import NotFound
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class _Handler(WSGIRequestHandler):
    """Logs nothing, as the application logs each request."""

    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing."""


def start(app: Flask, url: str) -> int:
    """Serve `/metrics` of an address in a thread; returns its port."""

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_metrics = environ["PATH_INFO"] == "/metrics"
        return (app if is_metrics else NotFound())(environ, start_response)

    address = urlsplit(url)
    server = make_server(address.hostname or "", address.port or 0, serve, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server.port
