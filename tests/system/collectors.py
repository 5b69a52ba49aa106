"""Collectors of traces on loopback: what they are sent by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SERVER, CLIENT, CONSUMER = 2, 3, 5


@dataclass(frozen=True)
class Span:
    """A span that was sent."""

    name: str
    kind: int
    trace_id: str
    id: str
    parent_id: str
    attributes: dict[str, Any]
    is_error: bool
    service: str


class Collector:
    """An HTTP server that collects spans."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Span] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Span]:
        """The spans of a name, in the order of their arrival."""
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Span) -> list[Span]:
        """The spans right below another one."""
        return [span for span in self.spans if span.parent_id == parent.id]

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        self.headers.append(headers)
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(one, service) for one in scope.spans]

    def _handler(collector) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector._take(self.path, headers, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def _span(sent: Any, service: str) -> Span:
    return Span(
        sent.name,
        sent.kind,
        sent.trace_id.hex(),
        sent.span_id.hex(),
        sent.parent_span_id.hex(),
        _plain(sent.attributes),
        sent.status.code == sent.status.STATUS_CODE_ERROR,
        service,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the time of a test."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()
