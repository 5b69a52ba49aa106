"""granian's threads: what an application gets of a request, and a client of its answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment, started, wait_for
from tests.project import PROGRAMS, PROJECT, free_port
from tests.system.goings_on import until
from tests.system.test_slow_clients import in_chunks

APPLICATION = """
import hashlib, json
from contextvars import ContextVar

path_of = ContextVar("path_of")

def serve(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/stream"):
        start_response("200 OK", [])
        return pieces(path)
    body = environ["wsgi.input"].read()
    told = {k: v for k, v in environ.items() if isinstance(v, str)}
    told["digest"] = hashlib.sha256(body).hexdigest()
    text = b"" if path == "/nothing" else json.dumps(told).encode()
    headers = [] if path == "/nothing" else [("Content-Length", str(len(text)))]
    start_response("204 No Content" if path == "/nothing" else "200 OK", headers)
    return [text] if text else []

def pieces(path):
    token = path_of.set(path)
    try:
        for number in range(200):
            if path == "/stream/breaks" and number == 3:
                raise ValueError
            yield path_of.get().encode().ljust(65536)
    finally:
        path_of.reset(token)
        print("closed", path, flush=True)
"""
HASTY = """
from deploy import exchange, granian_server, serving
serving.WRITE_SECONDS = 2
exchange.MAX_DISK_BYTES = 2**20
granian_server.main("streams:serve")
"""
LENGTH = 200 * 65_536


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("granian")


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    (folder / "streams.py").write_text(APPLICATION)
    port, log = free_port(), folder / "log"
    path = f"{PROJECT}:{folder}"
    env = environment(folder, PORT=str(port), PYTHONPATH=path, WEB_CONCURRENCY="1")
    with started([str(PROGRAMS / "python"), "-c", HASTY], env, log):
        wait_for(f"http://127.0.0.1:{port}/", log)
        yield port


def send(port: int, text: bytes, buffer: int = 0) -> socket.socket:
    sent = socket.socket()
    if buffer:
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sent.settimeout(20)
    sent.connect(("127.0.0.1", port))
    sent.sendall(text)
    return sent


def ask(port: int, method: str, path: str, *sent: Any) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, *sent)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("length", [1, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_granian_passes_whole_request_body(port: int, length: int, chunked: bool) -> None:
    body = b"x" * length
    headers = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(length)}
    _, text = ask(port, "POST", "/", in_chunks(body) if chunked else body, headers)
    told = json.loads(text)
    assert told["digest"] == sha256(body).hexdigest()
    assert told["CONTENT_LENGTH"] == str(length)
    assert "HTTP_TRANSFER_ENCODING" not in told


def test_granian_passes_request_unchanged(port: int) -> None:
    head = (
        b"GET /%C3%BC/a%2Fb?q=%20 HTTP/1.1\r\nHost: a\r\nX-One: \xfc\r\nX-One: 2\r\n"
        b"X_One: forged\r\nCookie: a=1\r\nCookie: b=2\r\nContent-Type: a/b\r\n"
        b"Connection: close\r\n\r\n"
    )
    with send(port, head) as client:
        text = b"".join(iter(lambda: client.recv(65_536), b""))
    told = json.loads(text.partition(b"\r\n\r\n")[2])
    expected = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/\xc3\xbc/a/b",
        "QUERY_STRING": "q=%20",
        "HTTP_X_ONE": "\xfc,2",
        "HTTP_COOKIE": "a=1; b=2",
        "CONTENT_TYPE": "a/b",
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": "HTTP/1.1",
    }
    assert expected.items() <= told.items()


def test_granian_sends_no_body_for_head_and_204(port: int) -> None:
    assert ask(port, "HEAD", "/") == (200, b"")
    assert ask(port, "GET", "/nothing") == (204, b"")


def test_granian_does_not_wait_for_body_over_limit(port: int) -> None:
    with send(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n") as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_granian_bodies_of_concurrent_requests_take_bounded_disk(port: int) -> None:
    head, body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n", b"x" * 290_000

    def status() -> int:
        return ask(port, "POST", "/", b"x" * 300_000)[0]

    def is_full() -> bool:
        held.enter_context(send(port, head + body))
        return status() == 503

    with ExitStack() as held:
        until(is_full)
        assert ask(port, "POST", "/", b"x" * 65_536)[0] == 200
    until(lambda: status() == 200)


def test_granian_slow_readers_hold_no_thread(port: int) -> None:
    with ExitStack() as held:
        request = b"GET /stream/slow HTTP/1.0\r\nHost: a\r\n\r\n"
        slow = [held.enter_context(send(port, request, 4096)) for _ in range(20)]
        for _ in range(3):
            assert ask(port, "GET", "/")[0] == 200
        for one in slow[:3]:
            text = b"".join(iter(lambda one=one: one.recv(1 << 20), b""))
            assert len(text.partition(b"\r\n\r\n")[2]) == LENGTH
            assert text.count(b"/stream/slow") == 200


@pytest.mark.parametrize("leaves", [True, False])
def test_granian_stream_without_reader_is_closed(port: int, leaves: bool, folder: Path) -> None:
    path = f"/stream/{leaves}"
    with send(port, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), 4096) as client:
        assert client.recv(1000)
        if leaves:
            client.close()
        until(lambda: f"closed {path}" in (folder / "log").read_text(), 20)


def test_granian_failing_stream_is_broken_off(port: int) -> None:
    with pytest.raises((HTTPException, ConnectionError)):
        ask(port, "GET", "/stream/breaks")
