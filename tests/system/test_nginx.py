"""What `deploy/nginx.conf` lets through, before an application that counts what arrives."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import certificates, services
from tests.system.site import nginx_site

pytestmark = [
    pytest.mark.skipif(not services.nginx(), reason="nginx is not installed"),
]
MB = 10**6
PIECE = b"10000\r\n" + b"x" * 65536 + b"\r\n"
KEY, BEARER, COOKIE = {"X-API-Key": "k"}, {"Authorization": "Bearer t"}, {"Cookie": "a=b"}


@dataclass
class Behind:
    """nginx, and what arrived behind it."""

    port: int
    arrived: list[tuple[str, str, int]] = field(default_factory=list)

    def begin(
        self,
        method: str,
        path: str,
        length: int | None,
        headers: Mapping[str, str] = {},
        address: str = "127.0.0.1",
    ) -> ssl.SSLSocket:
        """A connection on which a request with a body has begun; chunked without a length."""
        plain = socket.create_connection(("127.0.0.1", self.port), 20, (address, 0))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = context.wrap_socket(plain)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [f"{method} {path} HTTP/1.1", "Host: a", size]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection

    def send(self, method: str, path: str, length: int, headers: Mapping[str, str] = {}) -> int:
        """The status of a request with a whole body."""
        with self.begin(method, path, length, headers) as connection:
            with suppress(OSError):  # refused before it has all arrived
                connection.sendall(b"x" * length)
            return status(connection)


def status(connection: ssl.SSLSocket) -> int:
    """The status of the answer; refusals of nginx have the shape of errors."""
    answer = HTTPResponse(connection)
    answer.begin()
    if answer.status != 200:
        body = json.loads(answer.read())
        assert body["error"] in ("payload_too_large", "rate_limited")
        assert answer.headers["X-Correlation-ID"]
        assert (answer.status == 429) == bool(answer.headers["Retry-After"])
    return answer.status


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """nginx before an application that answers 200."""
    folder, behind = tmp_path_factory.mktemp("nginx"), Behind(0)

    class Application(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            read = len(self.rfile.read(length))
            behind.arrived.append((self.command, self.path, read))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Application) as application, ExitStack() as stack:
        thread = threading.Thread(target=application.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(application.shutdown)
        port = application.server_port
        site = nginx_site(certificates.make(folder), port, Path(folder))
        nginx = stack.enter_context(services.Nginx(site))
        behind.port = urlsplit(nginx.url).port or 0
        yield behind


@pytest.mark.parametrize(
    ("method", "path", "length", "headers", "expected"),
    [
        ("POST", "/api/v1/records/x", 2 * MB, {}, 413),
        ("POST", "/api/v1/files/upload", 100 * MB, {}, 413),
        ("POST", "/console/sign-in", 100 * MB, {}, 413),
        ("POST", "/api/v1/auth/login", 2 * MB, {}, 413),
        ("GET", "/api/v1/records/x", 2 * MB, BEARER, 413),
        ("DELETE", "/api/v1/files/x", 2 * MB, BEARER, 413),
        ("POST", "/api/v1/realtime/tickets", 2 * MB, {}, 413),
        ("POST", "/api/v1/users", 12 * MB, BEARER, 413),
        ("PUT", "/api/v1/records/x", 120 * MB, KEY, 413),
        ("POST", "/api/v1/records/x", MB, {}, 200),
        ("POST", "/api/v1/records/x?filter=a%20%2F", 12 * MB, KEY, 200),
        ("PATCH", "/api/v1/records/a%2Fb", 2 * MB, BEARER, 200),
        ("POST", "/console/accounts/x/files", 12 * MB, COOKIE, 200),
        ("POST", "/api/v1/users", 9 * MB, BEARER, 200),
        ("GET", "/api/v1/records/x?a=b", 0, {}, 200),
    ],
)
def test_nginx_body_over_one_megabyte_needs_credential(
    server: Behind,
    method: str,
    path: str,
    length: int,
    headers: dict[str, str],
    expected: int,
) -> None:
    server.arrived.clear()
    assert server.send(method, path, length, headers) == expected
    assert server.arrived == ([(method, path, length)] if expected == 200 else [])


def test_nginx_chunked_body_without_credential_is_413_at_one_megabyte(server: Behind) -> None:
    with server.begin("POST", "/console/sign-in", None) as connection:
        with suppress(OSError):
            for _ in range(40):
                connection.sendall(PIECE)
        assert status(connection) == 413


@pytest.mark.parametrize("length", [100 * MB, None])
def test_nginx_concurrent_large_bodies_per_address_are_limited(
    server: Behind, length: int | None
) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            begun = server.begin("POST", "/api/v1/records/x", length, {"Authorization": "made-up"})
            stack.enter_context(begun)
            begun.sendall(PIECE)
        assert server.send("POST", "/api/v1/records/x", 999_999, BEARER) == 200
        assert server.send("GET", "/api/v1/records/x", 0) == 200
        with server.begin("POST", "/console/x", length, COOKIE) as another:
            assert status(another) == 429
        elsewhere = server.begin("POST", "/api/v1/records/x", 2 * MB, KEY, "127.0.0.2")
        with elsewhere:
            elsewhere.sendall(b"x" * 2 * MB)
            assert status(elsewhere) == 200


@pytest.mark.parametrize("path", ["/_with_files", "/_with_body", "/_files/a"])
def test_nginx_internal_locations_are_404(server: Behind, path: str) -> None:
    server.arrived.clear()
    for headers in ({}, BEARER):
        with server.begin("GET", path, 0, headers) as connection:
            answer = HTTPResponse(connection)
            answer.begin()
            assert answer.status == 404
    assert server.arrived == []
