"""What the providers of the tests have in common: a small web server on loopback."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    status: int
    text: str = ""
    kind: str = "text/html"
    location: str | None = None


class Server:
    """Answers every request with what `answer` says; `address` is where it is."""

    def __init__(self) -> None:
        self.authorization: str | None = None  # of the last POST
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, body: str | None) -> Answer:
        """The answer to a GET, which has no body, or to a POST."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        self._server.socket.shutdown(socket.SHUT_RDWR)  # which ends the wait for a connection
        self._server.shutdown()
        self._server.server_close()

    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.tell(server.answer(self.path, None))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.authorization = self.headers.get("Authorization")
                self.tell(server.answer(self.path, body.decode()))

            def tell(self, answer: Answer) -> None:
                body = answer.text.encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(body)))
                if answer.location:
                    self.send_header("Location", answer.location)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
