"""A server that answers what a test says, where the real one cannot be made to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A response, after a delay; with `cut`, the connection ends in the middle of its body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0
    cut: bool = False
    pause: float = 0


@dataclass(frozen=True)
class Sent:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Stub:
    """Gives the answers in their order, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[Sent] = []
        self._answers = list(answers)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def next(self) -> Answer:
        """The next answer."""
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @contextmanager
    def serving(self) -> Iterator[Stub]:
        """Serve."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _handler(stub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                stub.requests.append(Sent(self.command, self.path, self.headers, body))
                answer = stub.next()
                time.sleep(answer.delay)
                text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                content = text.encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content) + 10 * answer.cut))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)
                time.sleep(answer.pause)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *arguments: object) -> None:
                """Print nothing."""

        return Handler


@contextmanager
def served(atrium: ModuleType, *answers: Answer, **options: Any) -> Iterator[tuple[Stub, Any]]:
    """A server, and a client that does not wait long."""
    retries = atrium.Retries(first_delay=0.01, **options)
    options = {"api_key": "x", "retries": retries, "timeout": 0.5}
    with Stub(*answers).serving() as stub, atrium.Client(stub.url, **options) as client:
        yield stub, client
